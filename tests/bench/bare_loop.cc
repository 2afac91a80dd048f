#include "tests/bench/bare_loop.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "tests/bench/bare_substrate.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr float kLearningRate = 1.0f / 1024;  // powers of two, so sums stay exact
constexpr float kGradient = 1.0f;
constexpr int kRoundsMax = 1000;
constexpr int64_t kAloneRounds = 2000;  // messages, at most

// The state that the processes share, in addition to the substrate.
struct Meeting {
  pthread_barrier_t all;
  pthread_barrier_t workers;
  double seconds[kRoundsMax];
  double round_trip_seconds;
  std::atomic<int> settled;  // members that have nothing in flight
};

// Blocks until every member is settled. A member must not exit while another one sends to it or
// reads its memory.
template <typename End>
void Leave(const BareLoopOptions& options, End& end, Meeting& meeting) {
  for (bool settled = false; meeting.settled < options.workers + options.servers;) {
    if (end.Settle() && !std::exchange(settled, true)) ++meeting.settled;
    sched_yield();
  }
}

Meeting* MakeMeeting(const BareLoopOptions& options) {
  auto* meeting = static_cast<Meeting*>(SharedPages(sizeof(Meeting)));
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&meeting->all, &shared, options.workers + options.servers);
  pthread_barrier_init(&meeting->workers, &shared, options.workers);
  return meeting;
}

int64_t AloneSteps(const BareLoopOptions& options) {
  if (!options.alone) return 0;
  const int64_t bytes = options.message_bytes * options.tensors;
  return std::max<int64_t>(1,
                           std::min(kAloneRounds / options.tensors, (int64_t{512} << 20) / bytes));
}

// Returns the number of steps that each process makes. One round more than measured is a warm-up.
int64_t TotalSteps(const BareLoopOptions& options) {
  return options.steps * (options.rounds + 1) + AloneSteps(options);
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void Subtract(float* p, const float* g,
                                                                           int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) p[i] -= kLearningRate * g[i];
}

// Computes p[i] -= lr * sum of gradients[i], and sets each place[i] = p[i].
void Apply(float* p, int64_t elements, const std::vector<const float*>& gradients,
           const std::vector<float*>& places) {
  constexpr int64_t kBlock = 2048;  // stays in the L1 cache between the passes
  for (int64_t begin = 0; begin < elements; begin += kBlock) {
    const int64_t end = std::min(elements, begin + kBlock);
    for (const float* gradient : gradients) {
      Subtract(p + begin, gradient + begin, end - begin);
    }
    for (float* place : places) {
      if (place != nullptr) std::copy(p + begin, p + end, place + begin);
    }
  }
}

void Serve(const BareLoopOptions& options, int index, BareServerEnd& end, Meeting& meeting) {
  const int64_t elements = options.message_bytes / sizeof(float);
  int own = 0;
  std::vector<std::vector<float>> values(options.tensors);
  for (int tensor = index; tensor < options.tensors; tensor += options.servers, ++own) {
    values[tensor].resize(elements);
  }
  std::vector<int> arrived(options.tensors);
  std::vector<const float*> gradients(options.workers);
  std::vector<float*> places(options.workers);
  for (int64_t left = TotalSteps(options) * own * options.workers; left > 0; --left) {
    const int tensor = end.AwaitPush().tensor;
    if (++arrived[tensor] < options.workers) continue;
    arrived[tensor] = 0;
    for (int worker = 0; worker < options.workers; ++worker) {
      gradients[worker] = end.gradient(tensor, worker);
      places[worker] = end.place(tensor, worker);
    }
    Apply(values[tensor].data(), elements, gradients, places);
    for (int worker = 0; worker < options.workers; ++worker) {
      end.Answer(tensor, worker, values[tensor].data());
    }
  }
  Leave(options, end, meeting);
}

void Stream(const BareLoopOptions& options, BareWorkerEnd& end) {
  std::vector<int64_t> pushed(options.tensors, 1);
  for (int tensor = 0; tensor < options.tensors; ++tensor) end.Push(tensor);
  for (int64_t left = options.steps * options.tensors; left > 0; --left) {
    const int tensor = end.AwaitValues();
    if (pushed[tensor]++ < options.steps) end.Push(tensor);
  }
}

// Measures the median round trip of one message at a time.
double OneByOne(const BareLoopOptions& options, BareWorkerEnd& end) {
  std::vector<double> seconds;
  for (int64_t i = AloneSteps(options) * options.tensors; i-- > 0;) {
    const auto begin = Clock::now();
    end.Push(static_cast<int>(i % options.tensors));
    end.AwaitValues();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  std::ranges::sort(seconds);
  return seconds.empty() ? 0 : seconds[seconds.size() / 2];
}

void Work(const BareLoopOptions& options, int rank, BareWorkerEnd& end, Meeting& meeting) {
  const int64_t elements = options.message_bytes / sizeof(float);
  for (int tensor = 0; tensor < options.tensors; ++tensor) {
    std::fill_n(end.gradient(tensor), elements, kGradient);
  }
  for (int round = -1; round < options.rounds; ++round) {
    pthread_barrier_wait(&meeting.workers);
    const auto begin = Clock::now();
    Stream(options, end);
    pthread_barrier_wait(&meeting.workers);
    if (rank == 0 && round >= 0) {
      meeting.seconds[round] = std::chrono::duration<double>(Clock::now() - begin).count();
    }
  }
  const double round_trip = OneByOne(options, end);
  if (rank == 0) meeting.round_trip_seconds = round_trip;
  const float expected = -kLearningRate * kGradient * options.workers * TotalSteps(options);
  for (int tensor = 0; tensor < options.tensors; ++tensor) {
    for (const int64_t i : {int64_t{0}, elements / 2, elements - 1}) {
      CHECK_EQ(end.values(tensor)[i], expected) << "tensor " << tensor << ", element " << i;
    }
  }
  Leave(options, end, meeting);
}

pid_t Fork(const std::function<void()>& role) {
  const pid_t pid = fork();
  PCHECK(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    role();
    _exit(0);
  }
  return pid;
}

// Waits for all processes. If one fails, it ends the others, which would wait forever.
void AwaitChildren(std::vector<pid_t> children) {
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = wait(&status);
    PCHECK(ended > 0);
    if (std::erase(children, ended) == 0) continue;
    if (status == 0) continue;
    for (const pid_t child : children) kill(child, SIGKILL);
    LOG(FATAL) << "a child of the bare loop failed: wait status " << status;
  }
}

absl::Status Check(const BareLoopOptions& o) {
  if (o.workers < 1 || o.servers < 1 || o.tensors < o.servers || o.steps < 1 || o.rounds < 1 ||
      o.rounds > kRoundsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "workers, servers, steps and rounds must be at least 1 (rounds at most ", kRoundsMax,
        "), and tensors at least as many as servers (workers ", o.workers, ", servers ", o.servers,
        ", tensors ", o.tensors, ", steps ", o.steps, ", rounds ", o.rounds, ")"));
  }
  if (o.message_bytes < 64 || o.message_bytes % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("message_bytes must be a multiple of 64 (is ", o.message_bytes, ")"));
  }
  return absl::OkStatus();
}

std::unique_ptr<BareSubstrate> MakeSubstrate(const BareLoopOptions& options) {
  if (options.substrate == "shm") return MakeBareSharedMemory(options);
  if (options.substrate == "ucx-shm") return MakeBareUcx(options, "posix,sysv,cma,self");
  if (options.substrate == "ucx-tcp") return MakeBareUcx(options, "tcp,self");
  if (options.substrate == "tcp") return MakeBareSockets(options);
  return nullptr;
}

}  // namespace

absl::StatusOr<BareLoopResult> RunBareLoop(const BareLoopOptions& options) {
  if (absl::Status good = Check(options); !good.ok()) return good;
  const std::unique_ptr<BareSubstrate> substrate = MakeSubstrate(options);
  if (substrate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown substrate '", options.substrate,
                                                   "'; there are shm, ucx-shm, ucx-tcp and tcp"));
  }
  Meeting* meeting = MakeMeeting(options);
  std::vector<pid_t> children;
  for (int index = 0; index < options.servers; ++index) {
    children.push_back(Fork([&] {
      const auto end = substrate->OpenServer(index);
      pthread_barrier_wait(&meeting->all);
      Serve(options, index, *end, *meeting);
    }));
  }
  for (int rank = 0; rank < options.workers; ++rank) {
    children.push_back(Fork([&] {
      const auto end = substrate->OpenWorker(rank);
      pthread_barrier_wait(&meeting->all);
      Work(options, rank, *end, *meeting);
    }));
  }
  AwaitChildren(std::move(children));
  std::sort(meeting->seconds, meeting->seconds + options.rounds);
  const double bits = 8.0 * static_cast<double>(options.message_bytes) * options.tensors *
                      static_cast<double>(options.steps) * options.workers;
  return BareLoopResult{.gigabits_per_second = bits / meeting->seconds[options.rounds / 2] / 1e9,
                        .round_trip_microseconds = 1e6 * meeting->round_trip_seconds};
}

}  // namespace muster
