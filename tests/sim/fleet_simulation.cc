#include "tests/sim/fleet_simulation.h"

#include <glog/logging.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/job/job_state.h"
#include "services/coordinator/job/recovery/recovery.h"
#include "services/ps/ps_metrics.h"
#include "tests/sim/halted_shards.h"
#include "tests/sim/simulated_member.h"
#include "tests/sim/simulated_ps.h"
#include "tests/sim/simulated_time.h"
#include "tests/sim/simulated_worker.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kJob[] = "sim-1";
constexpr int64_t kSteps = 24;
constexpr size_t kPs = 3;  // the first members
constexpr size_t kMembersMax = 7;
// I10: the next step comes within this time after the last step or after the last fault healed.
constexpr absl::Duration kProgressMax = absl::Seconds(10);
constexpr absl::Duration kEndMax = absl::Minutes(10);
// Half of the faults follow an event of the job, because bugs hide where a generation begins or
// ends. The others come at a random time.
constexpr double kFaultAfterEvent = 0.15;  // the chance that one follows an event
constexpr absl::Duration kAfterEventMax = absl::Milliseconds(300);

v1::JobSpec SpecOf(const FleetSimulation& options) {
  v1::JobSpec spec;
  CHECK(google::protobuf::TextFormat::ParseFromString(
      R"pb(
        name: "sim"
        model {
          zoo {
            name: "mlp"
            args {
              fields {
                key: "inputs"
                value { number_value: 16 }
              }
              fields {
                key: "hidden"
                value { string_value: "32" }
              }
              fields {
                key: "classes"
                value { number_value: 4 }
              }
            }
          }
        }
        data {
          synthetic { samples: 64 }
          batch_size: 8
        }
        training { optimizer { adamw { learning_rate: 0.01 } } }
        resources {
          workers { min: 1 max: 2 }
          ps: 2
        }
        checkpoint { every_steps: 7 keep_last: 2 }
        restart { max_restarts: 1000 }
        chunk_bytes: 1024
      )pb",
      &spec));
  spec.mutable_training()->set_steps(kSteps);
  if (options.judged) spec.mutable_training()->mutable_clip()->set_global_norm(2);
  if (options.replicated) spec.mutable_resources()->set_ps_replication(2);
  if (options.logical > 0) {
    spec.mutable_resources()->mutable_workers()->set_max(4);
    spec.mutable_resources()->mutable_workers()->set_logical(options.logical);
  }
  return spec;
}

// Returns the metrics that all simulated ps share; no test reads them.
PsMetrics& SharedPsMetrics() {
  static auto* const metrics = new Metrics;
  static auto* const ps = new PsMetrics(*metrics);
  return *ps;
}

// I9: the moves of the table (docs/reference/job_transitions.md), by states of the API.
bool MayFollow(v1::JobState from, v1::JobState to) {
  switch (from) {
    case v1::QUEUED:
      return to == v1::PREPARING || to == v1::SUSPENDED || to == v1::FAILED || to == v1::CANCELLED;
    case v1::PREPARING:
      return to == v1::RUNNING || to == v1::RECOVERING || to == v1::SUSPENDED || to == v1::FAILED ||
             to == v1::CANCELLED;
    case v1::RUNNING:
      return to == v1::RECOVERING || to == v1::SUSPENDED || IsTerminal(to);
    case v1::RECOVERING:
      return to == v1::PREPARING || to == v1::SUSPENDED || to == v1::FAILED || to == v1::CANCELLED;
    case v1::SUSPENDED:
      return to == v1::QUEUED || to == v1::CANCELLED;
    default:
      return false;
  }
}

class Simulation : public SimulatedWorld {
 public:
  Simulation(const FleetSimulation& options, Trajectory& trajectory)
      : options_(options), trajectory_(trajectory), time_(options.seed) {
    for (const char* name : {"ps-0", "ps-1", "ps-2"}) {
      members_.push_back(std::make_unique<SimulatedPs>(this, name, &SharedPsMetrics()));
    }
    for (int worker = 0; worker < (options.logical > 0 ? 4 : 3); ++worker) {
      members_.push_back(std::make_unique<SimulatedWorker>(this, absl::StrCat("worker-", worker)));
    }
    if (options.faults == 0) return;
    // Duplicates some pushes: a worker may resend a push that arrived.
    network_.SetFault([this](const WireHeader& header) {
      const bool again = header.kind == MessageKind::kPush && time_.Chance(0.02);
      return again ? InProcessNetwork::Fate::kDuplicate : InProcessNetwork::Fate::kDeliver;
    });
  }
  ~Simulation() override {
    for (const auto& member : members_) member->Kill(/*with_host=*/true);
    members_.clear();
  }

  FleetSimulation::Outcome Run() {
    fs::create_directories(options_.folder);
    StartCoordinator();
    for (size_t i = 0; i < members_.size(); ++i) {
      if (options_.grows && i > kPs) {
        StartLater(i, time_.Between(absl::Seconds(8), absl::Seconds(12)));
      } else {
        members_[i]->StartProcess();
      }
    }
    AtCoordinator([this](Coordinator& coordinator) {
      v1::CreateJobRequest request;
      *request.mutable_spec() = SpecOf(options_);
      const auto job = coordinator.users().CreateJob(request);
      CHECK(job.ok()) << job.status();
    });
    healed_ = time_.now();
    for (int i = 0; i < options_.faults; ++i) {
      if (time_.Chance(0.5)) {
        ++faults_after_events_;
        continue;
      }
      const absl::Duration last = absl::Seconds(options_.grows ? 40 : 15);
      time_.After(time_.Between(absl::ZeroDuration(), last), [this] { Harm(); });
    }
    Tick();
    while (!over_ && outcome_.violations.empty() && time_.Next()) {
    }
    if (outcome_.violations.empty()) CheckEnd();
    return std::move(outcome_);
  }

 private:
  // ---- SimulatedWorld

  SimulatedTime& time() override { return time_; }
  InProcessNetwork& network() override { return network_; }
  Trajectory& trajectory() override { return trajectory_; }
  absl::Duration step_max() const override {
    return absl::Milliseconds(options_.grows ? 2000 : 400);
  }
  int coordinator_life() const override { return coordinator_life_; }
  std::set<std::shared_ptr<ShardUpload>>& uploads() override { return uploads_; }

  bool AtCoordinator(const std::function<void(Coordinator&)>& what) override {
    if (coordinator_ == nullptr) return false;
    what(*coordinator_);
    coordinator_->Settle();
    // Dispatches in a later event, after the pending directives are sent, so that a seed stays
    // reproducible.
    if (dispatches_.exchange(false)) {
      time_.After(time_.Between(absl::Microseconds(20), absl::Milliseconds(5)), [this] {
        AtCoordinator([](Coordinator& coordinator) { coordinator.Dispatch(); });
      });
    }
    for (const auto& member : members_) {
      if (member->running()) member->TakeDirectives();
    }
    CheckJob();
    return true;
  }

  void Stir() override {
    for (size_t i = 0; i < members_.size(); ++i) Look(i);
  }

  void Advanced() override {
    if (time_.now() > healed_) {
      outcome_.longest_pause =
          std::max(outcome_.longest_pause, time_.now() - std::max(healed_, advanced_));
    }
    advanced_ = time_.now();
  }

  void Halted(const std::string& ps, const v1::JobPlan& plan,
              const v1::JobReport& report) override {
    if (troubled_until_[ps] <= scheduled_) halted_.Note(ps, plan, report);
  }
  void Ended(const std::string& member) override {
    halted_.Forget(member);
    troubled_until_.erase(member);
  }

  void Log(const std::string& what) override {
    outcome_.log.push_back(absl::StrCat(
        absl::FormatDuration(time_.now() - absl::FromUnixSeconds(1'700'000'000)), ": ", what));
  }

  void Violated(const std::string& what) override {
    Log(what);
    outcome_.violations.push_back(what);
  }

  // ---- events

  // Schedules a look of a member at its links. Members look one after another in random order.
  void Look(size_t member) {
    if (std::exchange(looking_[member], true)) return;
    time_.After(time_.Between(absl::Microseconds(20), absl::Milliseconds(2)), [this, member] {
      looking_[member] = false;
      if (members_[member]->LookAtLinks()) Stir();
    });
  }

  void Tick() {
    AtCoordinator([](Coordinator& coordinator) { coordinator.Tick(); });
    ++ticks_;
    if (ticks_ % 5 == 0) Stir();  // for members that wait for a timeout
    for (size_t i = 0; i < members_.size(); ++i) RestartWhenGone(i);
    if (over_) return;
    const absl::Duration pause = time_.now() - std::max(healed_, advanced_);
    if (pause > kProgressMax) {
      Violated(absl::StrCat("I10: no step for ", absl::FormatDuration(pause),
                            " though nothing is wrong"));
    }
    if (time_.now() - absl::FromUnixSeconds(1'700'000'000) > kEndMax) Violated("I10: no end");
    time_.After(Coordinator::kTickInterval, [this] { Tick(); });
  }

  void RestartWhenGone(size_t member) {
    if (members_[member]->running() || restarting_[member]) return;
    const absl::Duration away =
        member < kPs ? absl::ZeroDuration() : workers_away_until_ - time_.now();
    const absl::Duration pause =
        std::max(away, time_.Between(absl::Milliseconds(100), absl::Seconds(6)));
    HealsIn(pause);
    StartLater(member, pause);
  }

  void StartLater(size_t member, absl::Duration pause) {
    restarting_[member] = true;
    time_.After(pause, [this, member] {
      restarting_[member] = false;
      refused_.erase(members_[member]->name());
      members_[member]->StartProcess();
    });
  }

  void HealsIn(absl::Duration duration) { healed_ = std::max(healed_, time_.now() + duration); }

  void StartCoordinator() {
    metrics_ = std::make_unique<Metrics>();
    auto opened = Coordinator::Open({.state_dir = options_.folder + "/state",
                                     .metrics = metrics_.get(),
                                     .clock = [this] { return time_.now(); },
                                     .dispatch_soon = [this] { dispatches_ = true; }});
    CHECK(opened.ok()) << opened.status();
    coordinator_ = *std::move(opened);
    Log(absl::StrCat("the coordinator starts, term ", coordinator_->term()));
    refused_.clear();
  }

  // Drops the directives that the coordinator has not sent; its stored state survives.
  void CrashCoordinator() {
    if (coordinator_ == nullptr) return;
    Log("the coordinator is killed");
    for (const auto& member : members_) member->CoordinatorDied();
    uploads_.clear();
    coordinator_.reset();
    ++coordinator_life_;
    const absl::Duration pause = time_.Between(absl::Milliseconds(100), absl::Seconds(4));
    HealsIn(pause + absl::Seconds(2));  // members retry at least every two seconds
    time_.After(pause, [this] { StartCoordinator(); });
  }

  // ---- faults

  SimulatedMember& AnyPs() { return *members_[time_.Below(kPs)]; }
  SimulatedMember& AnyWorker() { return *members_[kPs + time_.Below(std::ssize(members_) - kPs)]; }
  SimulatedMember& Anybody() { return *members_[time_.Below(std::ssize(members_))]; }

  void Harm() {
    ++outcome_.faults;
    HealsIn(absl::ZeroDuration());
    const int64_t choice = time_.Below(100);
    if (choice < 22) return AnyPs().Kill(time_.Chance(0.2));
    if (choice < 44) return AnyWorker().Kill(time_.Chance(0.2));
    if (choice < 57) return CrashCoordinator();
    if (choice < 69) return StandStill(Anybody());
    if (choice < 77) return BreakStream(Anybody());
    if (choice < 84) return AnyWorker().CutLink();
    if (choice < 90) return Anybody().Leave();
    if (choice < 93) return Evacuate();
    if (choice < 97) return Suspend();
    AtCoordinator(
        [](Coordinator& coordinator) { coordinator.checkpoints().Request(kJob).IgnoreError(); });
  }

  void StandStill(SimulatedMember& member) {
    const absl::Duration pause = time_.Between(absl::Milliseconds(50), absl::Seconds(12));
    HealsIn(pause);
    Trouble(member, pause);
    member.StandStill(pause);
    time_.After(pause, [this] { Stir(); });
  }

  // Tells every member to leave. The ps leave later, possibly while the job waits for workers. Half
  // of the time the job is suspended meanwhile.
  void Evacuate() {
    Log("everybody is to leave");
    for (size_t i = 0; i < members_.size(); ++i) {
      const absl::Duration until = i < kPs
                                       ? time_.Between(absl::Seconds(1), absl::Seconds(4))
                                       : time_.Between(absl::ZeroDuration(), absl::Seconds(0.2));
      HealsIn(until);
      time_.After(until, [leaver = members_[i].get()] { leaver->Leave(); });
    }
    if (!time_.Chance(0.5)) return;
    const absl::Duration until = time_.Between(absl::Seconds(1), absl::Seconds(4));
    workers_away_until_ = time_.now() + until + absl::Seconds(1);
    HealsIn(until);
    time_.After(until, [this] { Suspend(); });
  }

  // Records that the member has a fault for `duration`. The coordinator may declare it lost
  // meanwhile, so its held shards no longer count.
  void Trouble(const SimulatedMember& member, absl::Duration duration) {
    absl::Time& until = troubled_until_[member.name()];
    until = std::max(until, time_.now() + duration);
    halted_.Forget(member.name());
  }

  void BreakStream(SimulatedMember& member) {
    HealsIn(absl::Seconds(2));
    Trouble(member, absl::Seconds(5));
    member.BreakStream();
  }

  void Suspend() {
    AtCoordinator([this](Coordinator& coordinator) {
      if (!coordinator.users().SuspendJob(kJob).ok()) return;
      Log("the job is to be suspended");
      HealsIn(absl::ZeroDuration());
      Resume();
    });
  }

  // Tries to resume the job every 0.1 to 3 s until it is resumed or has ended.
  void Resume() {
    const absl::Duration pause = time_.Between(absl::Milliseconds(100), absl::Seconds(3));
    HealsIn(pause);
    time_.After(pause, [this] {
      bool again = true;
      AtCoordinator([&](Coordinator& coordinator) {
        const auto job = coordinator.users().GetJob(kJob);
        v1::ResumeJobRequest request;
        request.set_name(kJob);
        again = !IsTerminal(job->state()) && !coordinator.users().ResumeJob(request).ok();
      });
      if (again) Resume();
    });
  }

  // ---- invariants

  void CheckJob() {
    const auto job = coordinator_->users().GetJob(kJob);
    if (!job.ok() || job->revision() == revision_) return;
    if (job->revision() < revision_) {
      Violated(
          absl::StrCat("the job goes back from revision ", revision_, " to ", job->revision()));
    }
    const auto events = coordinator_->store().Events(job->number(), revision_, 1000);
    CHECK(events.ok()) << events.status();
    for (const v1::JobEvent& event : *events) {
      Log(absl::StrCat(v1::JobState_Name(event.state()), " ", event.reason(), ": ",
                       event.message()));
      if (event.state() != state_ && revision_ > 0 && !MayFollow(state_, event.state())) {
        Violated(absl::StrCat("I9: from ", v1::JobState_Name(state_), " to ",
                              v1::JobState_Name(event.state())));
      }
      if (event.reason() == "STEPS_LOST") NoteUnknown(event.message());
      if (event.reason() == "STARTED") outcome_.workers.insert(job->workers_size());
      CheckRefused(event, *job);
      CheckSaved(event);
      CheckCarried(event);
      if (event.state() == v1::RECOVERING && state_ != v1::RECOVERING) {
        ++outcome_.recoveries;
        // A recovery that makes no step backs off longer each time.
        HealsIn(Recovery::Backoff(job->recovery(), job->spec().restart()));
      }
      state_ = event.state();
      if (faults_after_events_ == 0 || !time_.Chance(kFaultAfterEvent)) continue;
      --faults_after_events_;
      time_.After(time_.Between(absl::ZeroDuration(), kAfterEventMax), [this] { Harm(); });
    }
    revision_ = job->revision();
    over_ = IsTerminal(job->state());
    if (!job->checkpoint().empty()) CheckCheckpoint(job->checkpoint());
  }

  // Checks that a worker that failed its warm-up gets no rank in the next generation. A job of one
  // worker is exempt, because it may have no other.
  void CheckRefused(const v1::JobEvent& event, const v1::Job& job) {
    if (!IsActive(event.state())) return refused_.clear();
    for (size_t i = kPs; i < members_.size(); ++i) {
      const std::string& name = members_[i]->name();
      const bool is_named = absl::StrContains(event.message(), name);
      if (event.reason() == "WORKER_CANNOT_JOIN" && is_named) refused_.insert(name);
      // A worker that is named here may join again.
      if (event.reason() == "WORKERS_PREPARE" && is_named) refused_.erase(name);
    }
    if (event.reason() == "STARTED") {  // these workers could prepare after all
      for (const std::string& name : job.workers()) refused_.erase(name);
    }
    if (event.reason() != "SCHEDULED" || job.workers_size() < 2) return;
    for (const std::string& name : job.workers()) {
      if (!refused_.contains(name)) continue;
      Violated(absl::StrCat("the job goes on with ", name, ", which could not prepare it"));
    }
  }

  // Checks that a job does not go back because no held shard was written. A ps that holds a shard
  // has enough time to write it.
  void CheckSaved(const v1::JobEvent& event) {
    const bool goes_back = absl::StrContains(event.message(), "without the state of its shards");
    if (!goes_back || !absl::StrContains(event.message(), "no shard was written")) return;
    Violated(absl::StrCat("the job goes back: ", event.message()));
  }

  // Checks that a recovering job does not go back past the oldest version that its ps hold. This
  // counts only ps without a fault in this generation. A recovery for a leaving member is exempt,
  // because it may wait for a checkpoint only.
  void CheckCarried(const v1::JobEvent& event) {
    if (event.state() == v1::RECOVERING && state_ != v1::RECOVERING) halted_for_ = event.reason();
    if (event.state() == v1::SUSPENDED) halted_.Clear();
    if (event.reason() != "SCHEDULED") return;
    unsigned generation = 0;
    int64_t first_step = 0;
    CHECK(sscanf(event.message().c_str(), "generation %u on ", &generation) == 1 &&
          absl::SimpleAtoi(event.message().substr(event.message().rfind(' ') + 1), &first_step))
        << event.message();
    const auto held = halted_.OldestVersion(generation - 1);
    if (state_ == v1::RECOVERING && halted_for_ != "MEMBER_LEAVES" && held && first_step < *held) {
      Violated(absl::StrCat("the job goes back to step ", first_step, " though ps hold version ",
                            *held, " of all shards"));
    }
    scheduled_ = time_.now();
  }

  // Checks invariant I8 (the last checkpoint exists) and I5 (it has the values of its step).
  void CheckCheckpoint(const std::string& name) {
    const auto checkpoint = coordinator_->checkpoints().Get(name);
    if (!checkpoint.ok() || !fs::exists(checkpoint->directory() + "/manifest.json")) {
      return Violated(absl::StrCat("I8: ", name, " is not there"));
    }
    if (name == checkpoint_) return;
    checkpoint_ = name;
    const auto reader = CheckpointReader::Open(checkpoint->directory());
    if (!reader.ok()) return Violated(absl::StrCat("I5: ", reader.status().ToString()));
    // Cuts the parameters into chunks as a plan does. The shard numbers do not matter.
    const std::array<const char*, 4> parameters = {"layers.0.weight", "layers.0.bias",
                                                   "layers.1.weight", "layers.1.bias"};
    const std::array<int64_t, 4> elements = {512, 32, 128, 4};
    for (int p = 0; p < 4; ++p) {
      for (int64_t offset = 0; offset < elements[p]; offset += 256) {
        v1::PlanChunk chunk;
        chunk.set_parameter(p);
        chunk.set_offset(offset);
        std::vector<float> values(std::min<int64_t>(256, elements[p] - offset));
        const absl::Status read =
            (*reader)->Read(parameters[p], "", offset, absl::MakeSpan(values));
        if (!read.ok()) return Violated(absl::StrCat("I5: ", read.ToString()));
        if (!trajectory_.Has(chunk, checkpoint->step(), values)) {
          return Violated(absl::StrCat("I5: ", name, ": ", parameters[p], " from its ", offset,
                                       "th element on has other values than at this step"));
        }
      }
    }
  }

  void CheckEnd() {
    if (state_ != v1::SUCCEEDED) {
      return Violated(absl::StrCat("the job ends as ", v1::JobState_Name(state_)));
    }
    if (!absl::EndsWith(checkpoint_, absl::StrCat("/", kSteps))) {
      Violated(absl::StrCat("the last checkpoint is ", checkpoint_));
    }
    std::ifstream file(options_.folder + "/state/jobs/" + kJob + "/metrics.jsonl");
    int64_t next = 0;
    for (std::string line; std::getline(file, line); ++next) {
      while (unknown_.contains(next) && !IsOfStep(line, next)) ++next;
      if (!IsOfStep(line, next)) {
        return Violated(absl::StrCat("I1: where step ", next, " should be recorded: ", line));
      }
    }
    while (unknown_.contains(next)) ++next;
    if (next != kSteps) Violated(absl::StrCat("I1: steps are recorded up to ", next));
  }

  static bool IsOfStep(const std::string& line, int64_t step) {
    return absl::StartsWith(line, absl::StrCat("{\"step\":", step, ","));
  }

  // Notes the steps of an event about lost records: the workers that computed them died before the
  // coordinator received the records.
  void NoteUnknown(const std::string& message) {
    long first = 0, last = 0;
    const int found =
        sscanf(message.c_str(), "the results of steps %ld to %ld are not known", &first, &last);
    CHECK_EQ(found, 2) << message;
    for (int64_t step = first; step <= last; ++step) unknown_.insert(step);
  }

  const FleetSimulation& options_;
  Trajectory& trajectory_;
  SimulatedTime time_;
  InProcessNetwork network_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Coordinator> coordinator_;
  int coordinator_life_ = 1;
  std::atomic<bool> dispatches_ = false;  // the coordinator asked for a dispatch
  std::set<std::shared_ptr<ShardUpload>> uploads_;
  std::vector<std::unique_ptr<SimulatedMember>> members_;
  std::array<bool, kMembersMax> looking_ = {};     // by member
  std::array<bool, kMembersMax> restarting_ = {};  // by member
  int64_t ticks_ = 0;

  absl::Time healed_;  // when all members are back and no backoff runs any more
  absl::Time workers_away_until_ = absl::InfinitePast();
  absl::Time advanced_ = absl::InfinitePast();
  int faults_after_events_ = 0;  // still to come
  uint64_t revision_ = 0;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  std::string checkpoint_;
  HaltedShards halted_;
  std::string halted_for_;                            // the reason of the last recovery
  absl::Time scheduled_ = absl::InfinitePast();       // when the present generation was scheduled
  std::map<std::string, absl::Time> troubled_until_;  // by member
  std::set<int64_t> unknown_;      // steps whose records the job has reported as lost
  std::set<std::string> refused_;  // workers that the job has reported as unable to join
  bool over_ = false;
  FleetSimulation::Outcome outcome_;
};

}  // namespace

FleetSimulation::Outcome FleetSimulation::Run(Trajectory& trajectory) const {
  fs::remove_all(folder);
  Outcome outcome = Simulation(*this, trajectory).Run();
  if (outcome.violations.empty()) fs::remove_all(folder);
  return outcome;
}

}  // namespace muster
