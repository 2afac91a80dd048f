// Runs the coordinator without its ports under a whole fleet. Prints the figures of
// docs/benchmarks.md.
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/job/resource_name.h"
#include "lib/transport/core/crc32c.h"
#include "services/coordinator/common/ticker.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/testing/fake_member.h"
#include "services/coordinator/testing/made_up_jobs.h"

namespace muster {
namespace {

constexpr int kEndedJobs = 1000;
constexpr int kRunningJobs = 20;
constexpr int kWorkersOfJob = 8;
constexpr int kPs = 38;
constexpr int kWorkers = kRunningJobs * kWorkersOfJob + 2;  // two are left for the large job
constexpr int64_t kStepsOnDisk = 3'000'000;
constexpr int kShortJobs = 10'000;
constexpr int kClients = 32;
constexpr int kSubmissions = 1000;  // measured for each length of the queue
constexpr absl::Duration kMeasured = absl::Seconds(20);

v1::JobSpec RunningSpec() {
  return LinearSpec(R"pb(
    name: "running"
    data { linear { slope: 2 } }
    training { steps: 100000000 }
    resources {
      workers { min: 8 max: 8 }
      ps: 2
    }
    checkpoint { keep_last: 2 }
  )pb");
}

// A job that waits: the fleet is too small for it.
v1::JobSpec WaitingSpec() {
  v1::JobSpec spec = RunningSpec();
  spec.set_name("waiting");
  spec.mutable_data()->set_batch_size(2 * kWorkersOfJob);
  spec.mutable_resources()->mutable_workers()->set_min(2 * kWorkersOfJob);
  spec.mutable_resources()->mutable_workers()->set_max(2 * kWorkersOfJob);
  return spec;
}

// 100,000 chunks: 26 million parameters, 256 in each.
v1::JobSpec LargeSpec() {
  v1::JobSpec spec = LinearSpec(R"pb(
    name: "large"
    model { zoo { name: "mlp" } }
    data { synthetic { samples: 64 } }
    training { steps: 1 }
    resources {
      workers { min: 1 max: 1 }
      ps: 2
    }
    chunk_bytes: 1024
  )pb");
  (*spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields())["hidden"]
      .set_string_value("5000,4400");
  return spec;
}

int64_t ResidentKilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::StartsWith(line, "VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return -1;
}

void CheckOk(const absl::Status& status) { CHECK(status.ok()) << status; }

class Bench {
 public:
  explicit Bench(std::string folder) : folder_(std::move(folder)) {}

  // Opens the coordinator. Returns the time it took.
  absl::Duration Open() {
    coordinator_.reset();
    metrics_ = std::make_unique<Metrics>();
    const absl::Duration begin = SteadyNow();
    auto opened = Coordinator::Open(
        {.state_dir = folder_,
         .retention = {.keep = kEndedJobs},
         .metrics = metrics_.get(),
         .clock = [this] { return clock_.Now() + absl::Minutes(minutes_ahead_.load()); },
         .dispatch_soon = [this] { ticker_.DispatchSoon(); }});
    CheckOk(opened.status());
    coordinator_ = *std::move(opened);
    return SteadyNow() - begin;
  }

  v1::Job Create(const v1::JobSpec& spec) {
    v1::CreateJobRequest request;
    *request.mutable_spec() = spec;
    auto job = coordinator_->users().CreateJob(request);
    CheckOk(job.status());
    return *std::move(job);
  }
  void CreateEnded(int count) {
    for (int i = 0; i < count; ++i) {
      CheckOk(coordinator_->users().CancelJob(Create(RunningSpec()).name()).status());
    }
  }

  void AddMembers() {
    for (int i = 0; i < kWorkers; ++i) Add(absl::StrCat("w-", i));
    for (int i = 0; i < kPs; ++i) Add(absl::StrCat("p-", i));
  }
  void AttachAll() {
    for (auto& [name, member] : members_) {
      v1::MemberReport report = member.Report();
      *report.mutable_hello() = member.hello;
      auto attached = coordinator_->members().Attach(
          report, std::make_shared<StreamWaker>(std::function<void()>()));
      CheckOk(attached.status());
      member.attachment = *std::move(attached);
    }
  }

  // Every member obeys and reports once. Adds the time of each report to `micros`.
  void ReportAll(std::vector<double>* micros) {
    for (auto& [name, member] : members_) {
      for (const MemberDirective& told : member.attachment->TakeDirectives()) {
        const std::lock_guard<std::mutex> lock(plans_mu_);
        member.Obey(Whole(told));
      }
      const v1::MemberReport report = member.Report();
      const absl::Duration begin = SteadyNow();
      CheckOk(coordinator_->members().Report(*member.attachment, report));
      if (micros != nullptr) micros->push_back(absl::ToDoubleMicroseconds(SteadyNow() - begin));
    }
  }
  void StepAll() {
    for (auto& [name, member] : members_) {
      if (member.hello.role() != v1::WORKER) continue;
      for (const auto& id : running_) {
        const auto job = member.jobs.find(id);
        if (job != member.jobs.end() && job->second.state() == v1::MEMBER_RUNNING) member.Step(id);
      }
    }
  }

  void StartJobs() {
    for (int i = 0; i < kRunningJobs; ++i) {
      running_.push_back(JobIdOf(Create(RunningSpec()).name()));
    }
    auto all_run = [this] {
      return std::ranges::all_of(running_, [this](const std::string& id) {
        return coordinator_->users().GetJob(id)->state() == v1::RUNNING;
      });
    };
    for (int i = 0; i < 200 && !all_run(); ++i) {
      coordinator_->Tick();
      ReportAll(nullptr);
      coordinator_->Settle();
    }
    CHECK(all_run()) << coordinator_->users().GetJob(running_.back())->DebugString();
  }

  // Makes the first job look as if it had run for long: extends its log and its members' reports.
  void AgeFirstJob() {
    coordinator_.reset();
    const std::string& id = running_.front();
    std::ofstream log(absl::StrCat(folder_, "/jobs/", id, "/metrics.jsonl"));
    for (int64_t step = 0; step < kStepsOnDisk; ++step) {
      log << "{\"step\":" << step
          << ",\"loss\":0.33333333333333331,\"gradient_norm\":1.2345678901234567,"
             "\"learning_rate\":0.10000000000000001,\"samples_per_second\":80.123456789012345}\n";
    }
    CHECK(log.flush().good());
    for (auto& [name, member] : members_) {
      const auto job = member.jobs.find(id);
      if (job != member.jobs.end()) job->second.set_next_step(kStepsOnDisk);
    }
  }

  // Measures reports while checkpoints commit, a large job is planned repeatedly and time passes.
  void MeasureReports() {
    std::atomic<bool> stopping = false;
    std::atomic<int> checkpoints = 0, plans = 0;
    std::thread ticking([&] {
      for (; !stopping; absl::SleepFor(absl::Milliseconds(200))) coordinator_->Tick();
    });
    std::thread saving([&] {
      for (int64_t step = 1; !stopping; ++step) {
        for (int i = 1; i < kRunningJobs && !stopping; ++i) {
          if (WriteCheckpoint(running_[i])) ++checkpoints;
        }
      }
    });
    std::thread planning([&] {
      while (!stopping) {
        const std::string job = Create(LargeSpec()).name();
        while (!stopping && coordinator_->users().GetJob(job)->state() == v1::QUEUED) {
          absl::SleepFor(absl::Milliseconds(10));
        }
        (void)coordinator_->users().CancelJob(job);
        ++plans;
      }
    });
    std::vector<double> micros;
    const absl::Duration begin = SteadyNow();
    while (SteadyNow() - begin < kMeasured) {
      StepAll();
      const absl::Duration round = SteadyNow();
      ReportAll(&micros);
      // A real member reports once a second, or whenever a step ends. Here it reports ten times a
      // second.
      absl::SleepFor(absl::Milliseconds(100) - (SteadyNow() - round));
    }
    stopping = true;
    for (std::thread* thread : {&ticking, &saving, &planning}) thread->join();
    std::ranges::sort(micros);
    auto at = [&](double share) {
      return micros[static_cast<size_t>(share * (micros.size() - 1))];
    };
    std::printf(
        "%zu reports of %zu members, %d checkpoints, %d plans of 100,000 chunks: "
        "p50 %.0f us, p99 %.0f us, p99.9 %.0f us, max %.0f us\n",
        micros.size(), members_.size(), checkpoints.load(), plans.load(), at(0.5), at(0.99),
        at(0.999), at(1));
  }

  // Many clients submit jobs while the coordinator ticks. No job starts, although workers are free.
  // Prints how many jobs are accepted per second while the queue grows to each of these lengths.
  void MeasureSubmissions() {
    for (int i = 0; i < kWorkersOfJob; ++i) Add(absl::StrCat("w-", i));
    for (int i = 0; i < 2; ++i) Add(absl::StrCat("p-", i));
    AttachAll();
    ticker_.Start(
        Coordinator::kTickInterval, [this] { coordinator_->Tick(); },
        [this] { coordinator_->Dispatch(); });
    int queued = 0;
    for (const int length : {100, 5'000, 10'000}) {
      const int measured = std::min(kSubmissions, length);
      Submit(length - measured - queued);
      const absl::Duration begin = SteadyNow();
      Submit(measured);
      const double seconds = absl::ToDoubleSeconds(SteadyNow() - begin);
      std::printf("%d clients submit to a queue of %d jobs: %.0f jobs/s\n", kClients, length,
                  measured / seconds);
      std::fflush(stdout);
      queued = length;
    }
    ticker_.Stop();
  }

  // Submits and cancels jobs. All but the newest are deleted.
  void MeasureMemory() {
    const v1::Job first = Create(RunningSpec());
    CheckOk(coordinator_->users().CancelJob(first.name()).status());
    const int64_t before = first.number();
    for (int done = 0; done < kShortJobs;) {
      CreateEnded(kShortJobs / 10);
      done += kShortJobs / 10;
      ++minutes_ahead_;  // starts the next sweep
      const int64_t surplus = before + done - kEndedJobs;
      coordinator_->Tick();
      while (surplus > before &&
             coordinator_->users().GetJob(absl::StrCat("running-", surplus)).ok()) {
        absl::SleepFor(absl::Milliseconds(10));
      }
      std::printf("after %5d short jobs, of which the newest %d are kept: %ld MiB resident\n", done,
                  kEndedJobs, static_cast<long>(ResidentKilobytes() >> 10));
      std::fflush(stdout);
    }
  }

 private:
  void Add(const std::string& name) { members_[name].hello = HelloOf(name); }

  // All clients together submit `count` jobs. Meanwhile the members renew their leases.
  void Submit(int count) {
    std::atomic<int> left = count;
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i) {
      clients.emplace_back([&] {
        while (left-- > 0) Create(WaitingSpec());
      });
    }
    while (left > 0) {
      ReportAll(nullptr);
      absl::SleepFor(absl::Milliseconds(100));
    }
    for (std::thread& client : clients) client.join();
  }

  // Requests a checkpoint and writes all its shards. The coordinator chooses the step. Returns
  // false if the request or a shard fails, or is not needed.
  bool WriteCheckpoint(const std::string& id) {
    const auto request = coordinator_->checkpoints().Request(id);
    if (!request.ok()) return false;
    v1::JobPlan plan;
    {
      const std::lock_guard<std::mutex> lock(plans_mu_);
      for (const auto& [name, member] : members_) {
        const auto known = member.plans.find(id);
        if (known != member.plans.end()) plan = known->second;
      }
    }
    for (int shard = 0; shard < plan.shards_size(); ++shard) {
      v1::WriteShardHeader header;
      header.set_job(id);
      header.set_generation(plan.generation());
      header.set_step(request->step);
      header.set_shard(shard);
      header.set_snapshot(request->request);
      auto upload = coordinator_->checkpoints().BeginShard(header);
      if (!upload.ok() || !upload->has_value()) return false;
      absl::Status sent;
      for (int chunk = 0; chunk < plan.chunks_size() && sent.ok(); ++chunk) {
        if (plan.chunks(chunk).shard() != shard) continue;
        const std::vector<float> values(plan.chunks(chunk).elements(), 1.f);
        const auto bytes = std::as_bytes(std::span(values));
        v1::ShardSlice slice;
        slice.set_chunk(chunk);
        slice.set_data(bytes.data(), bytes.size());
        slice.set_crc32c(Crc32c(bytes));
        sent = (*upload)->Write(slice);
      }
      if (!coordinator_->checkpoints().EndShard(**upload, sent).ok()) return false;
    }
    return plan.shards_size() > 0;
  }

  const std::string folder_;
  FleetClock clock_;
  std::atomic<int> minutes_ahead_ = 0;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  Ticker ticker_;
  std::map<std::string, FakeMember> members_;
  std::vector<std::string> running_;
  std::mutex plans_mu_;  // guards the members' plans
};

// Calls `measure` with a new state folder, and removes it.
void InNewFolder(void (*measure)(const std::string& folder)) {
  std::string folder = (std::filesystem::temp_directory_path() / "coordinator-XXXXXX").native();
  CHECK(mkdtemp(folder.data()) != nullptr) << folder;
  measure(folder);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
}

void MeasureSubmissions(const std::string& folder) {
  Bench bench(folder);
  bench.Open();
  bench.MeasureSubmissions();
}

void MeasureFleet(const std::string& folder) {
  Bench bench(folder);
  bench.Open();
  bench.CreateEnded(kEndedJobs);
  std::printf("a start with %d ended jobs: %.3f s\n", kEndedJobs,
              absl::ToDoubleSeconds(bench.Open()));
  std::fflush(stdout);
  bench.MeasureMemory();
  bench.AddMembers();
  bench.AttachAll();
  bench.StartJobs();
  bench.AgeFirstJob();
  std::printf("a start with %d jobs that run as well, one of %ld steps: %.3f s\n", kRunningJobs,
              static_cast<long>(kStepsOnDisk), absl::ToDoubleSeconds(bench.Open()));
  bench.AttachAll();
  bench.MeasureReports();
}

}  // namespace
}  // namespace muster

// Measures only submissions if there is any argument.
int main(int argc, char**) {
  FLAGS_minloglevel = google::GLOG_ERROR;
  muster::InNewFolder(muster::MeasureSubmissions);
  if (argc == 1) muster::InNewFolder(muster::MeasureFleet);
  return 0;
}
