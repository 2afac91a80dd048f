#include "tests/sim/sync_simulation.h"

#include <algorithm>
#include <queue>

#include "glog/logging.h"

namespace muster {
namespace {

// Number of simulated steps. The first ones fill buffers; the result is the mean of the others.
constexpr int kWarmUpSteps = 2;
constexpr int kMeasuredSteps = 2;

// The kind of a burst. kGradients: the subject is a layer, whose gradients go to their shards.
// Other kinds: the subject is a chunk. It goes to the next worker of the ring, or to every worker
// (kValues).
enum BurstKind : int { kGradients, kPartialSum, kRingValue, kValues };

class Simulation {
 public:
  Simulation(const SimulatedJob& job, const SimulatedCluster& cluster)
      : job_(job),
        cluster_(cluster),
        hosts_(HostCount(cluster)),
        network_(hosts_, cluster.network,
                 [this](const NetworkBurst& burst, int index) { return MessageOf(burst, index); }),
        workers_(cluster.workers),
        shards_(cluster.shard_hosts.size()),
        bytes_before_(hosts_),
        arrived_(job.chunks.size()),
        chunks_of_layer_(job.layers.size()) {
    for (size_t c = 0; c < job.chunks.size(); ++c) {
      chunks_of_layer_[job.chunks[c].layer].push_back(static_cast<int>(c));
    }
    for (Worker& worker : workers_) {
      worker.missing.resize(job.layers.size());
      worker.ready.resize(job.chunks.size());
    }
    if (cluster.allreduce) {
      partial_at_.assign(job.chunks.size(), -1);
      adding_until_.resize(cluster.workers);
    }
  }

  SimulatedStep Run() {
    for (int w = 0; w < cluster_.workers; ++w) Continue(0, w);
    while (workers_[0].step_begins.size() <= kWarmUpSteps + kMeasuredSteps) {
      if (!events_.empty() && events_.top().time <= network_.next_time()) {
        const Event event = events_.top();
        events_.pop();
        Handle(event);
      } else {
        CHECK(network_.next_time() < std::numeric_limits<double>::infinity())
            << "the simulated job hangs: no event and no message is left";
        const double now = network_.next_time();
        NetworkMessage message;
        if (network_.Advance(message)) Deliver(now, message);
      }
    }
    const std::vector<double>& begins = workers_[0].step_begins;
    SimulatedStep step{.seconds = (begins.back() - begins[kWarmUpSteps]) / kMeasuredSteps};
    for (int host = 0; host < hosts_; ++host) {
      const double bytes = network_.bytes_sent(host) - bytes_before_[host];
      step.bytes_per_nic = std::max(step.bytes_per_nic, bytes / kMeasuredSteps);
    }
    return step;
  }

 private:
  struct Worker {
    bool backward = false;
    int layer = 0;
    bool waiting = false;
    int layers_missing = 0;
    std::vector<int> missing;  // by layer: chunks whose value has not returned
    std::vector<char> ready;   // by chunk: its gradient is final and not yet passed on (ring)
    std::vector<double> step_begins;
  };
  struct Shard {
    double busy_until = 0;
  };
  enum class EventKind { kComputed, kApplied, kAdded };
  struct Event {
    double time;
    int64_t number;
    EventKind kind;
    int who;    // worker; kApplied: shard
    int chunk;  // kApplied, kAdded
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  static int HostCount(const SimulatedCluster& cluster) {
    int hosts = cluster.workers;
    for (const int host : cluster.shard_hosts) hosts = std::max(hosts, host + 1);
    return hosts;
  }

  int HostOf(int chunk) const { return cluster_.shard_hosts[job_.chunks[chunk].shard]; }

  void At(double time, EventKind kind, int who, int chunk) {
    events_.push({time, numbers_++, kind, who, chunk});
  }

  void Handle(const Event& event) {
    switch (event.kind) {
      case EventKind::kComputed:
        return Computed(event.time, event.who);
      case EventKind::kApplied:
        return Applied(event.time, event.chunk);
      case EventKind::kAdded:
        return PassOn(event.time, event.who, event.chunk);
    }
  }

  void Deliver(double now, const NetworkMessage& message) {
    switch (message.kind) {
      case kGradients:
        return Push(now, message.chunk);
      case kPartialSum:
        partial_at_[message.chunk] = message.to;
        return Add(now, message.to, message.chunk);
      case kRingValue:
        TakeValue(now, message.to, message.chunk);
        return PassValue(now, message.to, message.chunk);
      case kValues:
        return TakeValue(now, message.to, message.chunk);
    }
  }

  // ---- workers

  // Computes the next layer, or waits for its values.
  void Continue(double now, int w) {
    Worker& worker = workers_[w];
    if (!worker.backward) {
      const int missing = cluster_.overlap ? worker.missing[worker.layer] : worker.layers_missing;
      worker.waiting = missing > 0;
      if (worker.waiting) return;
      if (worker.layer == 0) BeginStep(now, worker);
    }
    const SimulatedJob::Layer& layer = job_.layers[worker.layer];
    At(now + (worker.backward ? layer.backward_seconds : layer.forward_seconds),
       EventKind::kComputed, w, -1);
  }

  void BeginStep(double now, Worker& worker) {
    worker.step_begins.push_back(now);
    if (&worker != &workers_[0] || worker.step_begins.size() != kWarmUpSteps + 1) return;
    for (int host = 0; host < hosts_; ++host) bytes_before_[host] = network_.bytes_sent(host);
  }

  void Computed(double now, int w) {
    Worker& worker = workers_[w];
    const int last = static_cast<int>(job_.layers.size()) - 1;
    if (!worker.backward) {
      if (worker.layer == last) {
        worker.backward = true;
      } else {
        ++worker.layer;
      }
    } else {
      GradientsAreFinal(now, w, worker.layer);
      if (worker.layer == 0) {
        worker.backward = false;
      } else {
        --worker.layer;
      }
    }
    Continue(now, w);
  }

  void GradientsAreFinal(double now, int w, int layer) {
    Worker& worker = workers_[w];
    worker.missing[layer] = static_cast<int>(chunks_of_layer_[layer].size());
    worker.layers_missing += worker.missing[layer] > 0;
    for (const int chunk : chunks_of_layer_[layer]) {
      if (cluster_.allreduce) {
        worker.ready[chunk] = true;
        Add(now, w, chunk);
      } else if (HostOf(chunk) == w) {
        Push(now, chunk);
      }
    }
    if (!cluster_.allreduce) Send(now, w, kGradients, layer, layer, worker.missing[layer]);
  }

  void TakeValue(double now, int w, int chunk) {
    Worker& worker = workers_[w];
    const int layer = job_.chunks[chunk].layer;
    if (--worker.missing[layer] == 0) --worker.layers_missing;
    if (worker.waiting) Continue(now, w);
  }

  void Send(double now, int from, int kind, int subject, int layer, int messages) {
    network_.Send(now, {.from = from,
                        .priority = cluster_.priority ? layer : 0,
                        .messages = messages,
                        .kind = kind,
                        .subject = subject});
  }

  NetworkMessage MessageOf(const NetworkBurst& burst, int index) const {
    int chunk = burst.subject;
    int to = 0;
    switch (burst.kind) {
      case kGradients:
        chunk = chunks_of_layer_[burst.subject][index];
        to = HostOf(chunk);
        break;
      case kPartialSum:
      case kRingValue:
        to = Next(burst.from);
        break;
      case kValues:
        to = (chunk + index) % cluster_.workers;  // each chunk begins at another worker
        break;
    }
    return {.to = to, .bytes = job_.chunks[chunk].bytes, .kind = burst.kind, .chunk = chunk};
  }

  // ---- shards

  // Occupies the shard's thread. The last push of a chunk triggers its update.
  void Push(double now, int chunk) {
    const SimulatedJob::Chunk& c = job_.chunks[chunk];
    double& until = shards_[c.shard].busy_until;
    until = std::max(until, now) + c.bytes / cluster_.sum_bytes_per_second;
    if (++arrived_[chunk] < cluster_.workers) return;
    arrived_[chunk] = 0;
    until += c.bytes / cluster_.apply_bytes_per_second;
    At(until, EventKind::kApplied, c.shard, chunk);
  }

  void Applied(double now, int chunk) {
    const int host = HostOf(chunk);
    if (host < cluster_.workers) TakeValue(now, host, chunk);
    if (cluster_.allreduce) return PassValue(now, host, chunk);
    Send(now, host, kValues, chunk, job_.chunks[chunk].layer, cluster_.workers);
  }

  // ---- the ring

  int Next(int w) const { return (w + 1) % cluster_.workers; }
  int FirstOf(int chunk) const { return Next(HostOf(chunk)); }

  // Adds the worker's gradient to the partial sum of the workers before it. No-op until both are
  // there.
  void Add(double now, int w, int chunk) {
    const bool first = w == FirstOf(chunk);
    if (!workers_[w].ready[chunk] || (!first && partial_at_[chunk] != w)) return;
    workers_[w].ready[chunk] = false;
    if (first) return PassOn(now, w, chunk);
    partial_at_[chunk] = -1;
    const double bytes = job_.chunks[chunk].bytes;
    double& until = adding_until_[w];
    until = std::max(until, now) + bytes / cluster_.sum_bytes_per_second;
    if (w == HostOf(chunk)) until += bytes / cluster_.apply_bytes_per_second;
    At(until, EventKind::kAdded, w, chunk);
  }

  void PassOn(double now, int w, int chunk) {
    if (w == HostOf(chunk)) return Applied(now, chunk);
    Send(now, w, kPartialSum, chunk, job_.chunks[chunk].layer, 1);
  }

  void PassValue(double now, int w, int chunk) {
    if (Next(w) == HostOf(chunk)) return;
    Send(now, w, kRingValue, chunk, job_.chunks[chunk].layer, 1);
  }

  const SimulatedJob& job_;
  const SimulatedCluster& cluster_;
  const int hosts_;
  NetworkModel network_;
  std::vector<Worker> workers_;
  std::vector<Shard> shards_;
  std::vector<double> bytes_before_;  // bytes sent by each host when the measured steps began
  std::vector<int> arrived_;          // by chunk: pushes of its step so far
  std::vector<std::vector<int>> chunks_of_layer_;
  std::vector<int> partial_at_;       // ring: the worker that holds a chunk's partial sum; -1: none
  std::vector<double> adding_until_;  // ring: when each worker's exchange thread is free
  std::priority_queue<Event> events_;
  int64_t numbers_ = 0;
};

}  // namespace

SimulatedStep Simulate(const SimulatedJob& job, const SimulatedCluster& cluster) {
  CHECK(!job.layers.empty());
  CHECK_GE(cluster.workers, 1);
  for (const SimulatedJob::Chunk& chunk : job.chunks) {
    CHECK_LT(chunk.shard, std::ssize(cluster.shard_hosts));
    CHECK_LT(chunk.layer, std::ssize(job.layers));
  }
  return Simulation(job, cluster).Run();
}

double SeparateOptimum(int n, int k, double bytes, double bytes_per_second) {
  return std::max(1.0, static_cast<double>(n) / k) * bytes / bytes_per_second;
}

double ColocatedOptimum(int n, int k, double bytes, double bytes_per_second) {
  if (k >= n) return bytes / bytes_per_second;
  return 2.0 * n * (n - 1) / (n * n + k * n - 2.0 * k) * bytes / bytes_per_second;
}

double RingOptimum(int n, double bytes, double bytes_per_second) {
  return 2.0 * (n - 1) / n * bytes / bytes_per_second;
}

}  // namespace muster
