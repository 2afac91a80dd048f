#include "services/coordinator/coordinator.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "lib/version/build.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/job/job_state.h"
#include "services/coordinator/job/recovery/recovery.h"
#include "services/coordinator/scheduling/worker_numbers.h"
#include "services/coordinator/store/sqlite_store.h"

namespace muster {
namespace {

constexpr absl::Duration kWatchInterval = absl::Seconds(1);
constexpr absl::Duration kSweepInterval = absl::Minutes(1);

using MemberState = CoordinatorMetrics::MemberState;

// A draining member may also lose its stream. It still counts as draining, because it will not
// return.
MemberState StateOf(const AttachedMember& member) {
  if (member.leaving) return MemberState::kDraining;
  return member.attached ? MemberState::kAttached : MemberState::kSilent;
}

CoordinatorMetrics::Workers WorkersWanted(const Job& job) {
  const v1::JobSpec& spec = job.record().spec();
  const int64_t min = spec.resources().workers().min();
  const int64_t max = MostWorkers(spec);
  switch (job.state()) {
    case v1::QUEUED:
    case v1::RECOVERING:
      return {.min = min, .max = max};
    case v1::PREPARING:
    case v1::RUNNING: {
      const int64_t has = job.record().workers_size();
      // If the number of workers cannot change, the job can neither release nor accept one.
      if (job.plan() == nullptr || !Recovery::CanContinueInPlace(*job.plan()))
        return {.min = has, .max = has};
      return {.min = min, .max = max};
    }
    default:
      return {};  // an ended or suspended job holds no members
  }
}

// The number of jobs without members that are shown with their reason, the oldest first. A queue
// may have thousands.
constexpr int kRestingJobsShownMax = 100;

std::vector<CoordinatorMetrics::StateOfJob> StatesToShow(
    const JobRegistry::Transaction& transaction) {
  std::vector<CoordinatorMetrics::StateOfJob> states;
  int resting = 0;
  for (const auto& [number, entry] : transaction.jobs()) {
    const v1::JobState state = entry->published->state();
    if (IsTerminal(state)) continue;
    if (!IsActive(state) && ++resting > kRestingJobsShownMax) continue;
    const v1::Job view = transaction.View(*entry, v1::JOB_VIEW_BASIC);
    states.push_back({.job = JobIdOf(view.name()),
                      .state = state,
                      .reason = view.has_trouble()   ? view.trouble().reason()
                                : view.has_waiting() ? view.waiting().reason()
                                                     : view.reason()});
  }
  return states;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Open(Options options) {
  CHECK(options.metrics != nullptr);
  absl::StatusOr<StateFolder> folder = StateFolder::Open(options.state_dir);
  RETURN_IF_ERROR(Annotate(folder.status(), "--state_dir"));
  std::unique_ptr<Store> store = std::move(options.store);
  if (store == nullptr) {
    ASSIGN_OR_RETURN(store, SqliteStore::Open(folder->store()));
  }
  auto metrics = std::make_unique<CoordinatorMetrics>(options.metrics);
  prometheus::Histogram& commits = metrics->store_commit_seconds;
  store->ObserveCommits(
      [&commits](absl::Duration took) { commits.Observe(absl::ToDoubleSeconds(took)); });
  ASSIGN_OR_RETURN(const std::vector<Store::Seat> seats, store->Seats());
  LeaseTable::Ordinals ordinals;
  for (const Store::Seat& seat : seats) ordinals[seat.member] = seat.ordinal;
  std::unique_ptr<Coordinator> coordinator(new Coordinator(std::move(options), *std::move(folder),
                                                           std::move(metrics), std::move(store),
                                                           std::move(ordinals)));
  RETURN_IF_ERROR(coordinator->registry_.Load(coordinator->options_.opened_one));
  coordinator->options_.opened_one();
  coordinator->users_.RemoveOrphans();
  // The term is exported last, because a coordinator that exports it counts as serving in the alert
  // MusterCoordinatorDown.
  coordinator->metrics_->ShowTerm(coordinator->store_->term());
  return coordinator;
}

Coordinator::Coordinator(Options options, StateFolder folder,
                         std::unique_ptr<CoordinatorMetrics> metrics, std::unique_ptr<Store> store,
                         LeaseTable::Ordinals ordinals)
    : options_(std::move(options)),
      start_(options_.clock()),
      metrics_(std::move(metrics)),
      store_(std::move(store)),
      fleet_({.cluster = store_->cluster(),
              .term = store_->term(),
              .lease = options_.lease,
              .ordinals = std::move(ordinals)}),
      registry_({.folder = std::move(folder),
                 .store = store_.get(),
                 .fleet = &fleet_,
                 .watches = &watches_,
                 .metrics = metrics_.get(),
                 .clock = options_.clock,
                 .dispatch_soon = options_.dispatch_soon}),
      checkpoints_(&registry_, &series_, metrics_.get()),
      users_({.registry = &registry_,
              .checkpoints = &checkpoints_,
              .watches = &watches_,
              .data_visible = options_.data_visible,
              .paths = options_.paths}),
      queries_(&registry_, &watches_, &series_),
      logs_(&fleet_),
      traces_(&registry_, &fleet_),
      members_({.registry = &registry_,
                .fleet = &fleet_,
                .logs = &logs_,
                .traces = &traces_,
                .checkpoints = &checkpoints_,
                .metrics = metrics_.get()}),
      scheduler_(&registry_, &fleet_),
      ended_jobs_({.registry = &registry_, .users = &users_, .retention = options_.retention}),
      disk_(
          {.folder = options_.state_dir,
           .store = options_.store_file.empty() ? registry_.folder().store() : options_.store_file},
          *options_.metrics) {}

v1::ListMembersResponse Coordinator::ListMembers() const {
  v1::ListMembersResponse response = members_.ListMembers();
  response.set_term(term());
  response.set_coordinator_metrics_url(options_.metrics->url());
  response.set_coordinator_insecure(options_.insecure);
  return response;
}

v1::ServerInfo Coordinator::Describe() const {
  const Build build = ThisBuild();
  const absl::Time now = registry_.Now();
  v1::ServerInfo info;
  info.set_version(build.version);
  info.set_commit(build.commit);
  info.set_build(build.kind);
  info.set_cluster(store_->cluster());
  info.set_term(term());
  *info.mutable_start_time() = ToProto(start_);
  *info.mutable_server_time() = ToProto(now);
  *info.mutable_uptime() = ToProto(now - start_);
  info.set_store(options_.store_kind);
  info.set_state_dir(options_.state_dir);
  info.set_data_visible(options_.data_visible);
  info.set_metrics_url(options_.metrics->url());
  v1::ServerLimits& bounds = *info.mutable_limits();
  bounds.set_jobs_queued(limits::kJobsQueuedMax);
  bounds.set_members(limits::kAttachedMembersMax);
  bounds.set_watches(limits::kWatchCallsMax);
  bounds.set_events_kept(limits::kJobEventsKeptMax);
  bounds.set_message_bytes(limits::kControlMessageBytesMax);
  *bounds.mutable_lease() = ToProto(options_.lease);
  return info;
}

absl::StatusOr<JobSeries> Coordinator::ReadSeries(const std::string& job,
                                                  const SeriesRequest& request) {
  RETURN_IF_ERROR(users_.GetJob(job).status());
  return series_.Read(registry_.folder().metrics_log(JobIdOf(job)), request);
}

void Coordinator::Tick() {
  const absl::Time last = std::exchange(last_tick_, registry_.Now());
  if (last != absl::InfinitePast()) {
    const absl::Duration late = std::max(last_tick_ - last - kTickInterval, absl::ZeroDuration());
    metrics_->tick_lateness.Observe(absl::ToDoubleSeconds(late));
    if (late > options_.lease) stood_still_ = true;
  }
  members_.ExpireLeases();
  logs_.Expire(registry_.Now());
  TickJobs();
  traces_.Expire();
  scheduler_.Pass();
  if (registry_.Now() - last_sweep_ >= kSweepInterval) {
    last_sweep_ = registry_.Now();
    ended_jobs_.SweepSoon();
  }
  if (registry_.Now() - last_progress_ < kWatchInterval) return;
  last_progress_ = registry_.Now();
  WakeWatches();
  ExportMetrics();
}

// Dispatches nothing after a pause of this process. The next tick must first detect the pause and
// move the deadlines.
void Coordinator::Dispatch() {
  if (stood_still_ || registry_.Now() - last_tick_ > options_.lease) return;
  scheduler_.Pass();
}

// Deadlines of jobs do not advance while the store's disk is slow or full, because their
// consequences could not be stored. They do not advance while the coordinator starts, is
// partitioned or was stopped itself, because members could not report. The deadlines of a
// job with unrecorded steps do not advance either, because its workers wait for the record.
void Coordinator::TickJobs() {
  if (registry_.changes().full() || !registry_.changes().trouble().ok() || fleet_.partitioned()) {
    stood_still_ = true;
    return;
  }
  JobRegistry::Transaction transaction(&registry_);
  const bool went_on = std::exchange(stood_still_, false);
  for (const auto& [number, entry] : transaction.jobs()) {
    if (!entry->job.active() && entry->job.state() != v1::QUEUED) continue;
    const bool records = registry_.MetricsTrouble(number).ok();
    if (went_on || !records) entry->job.WentOn(registry_.Now());
    entry->job.Tick(entry->rounds.writing(), registry_.Now());
    // There may be thousands of queued jobs, and a tick changes none of them.
    if (went_on || !records || entry->job.active()) transaction.Commit(*entry);
  }
}

void Coordinator::Settle() {
  scheduler_.AwaitIdle();
  ended_jobs_.AwaitIdle();
  registry_.Settle();
}

void Coordinator::WakeWatches() {
  std::vector<uint64_t> numbers;
  {
    JobRegistry::Transaction transaction(&registry_);
    for (const JobRegistry::Entry* entry : transaction.Active()) {
      numbers.push_back(entry->published->number());
    }
  }
  watches_.Wake(numbers);
}

void Coordinator::ExportMetrics() {
  absl::flat_hash_map<int, int> jobs;
  absl::flat_hash_map<std::pair<v1::Role, MemberState>, int> members;
  JobRegistry::Transaction transaction(&registry_);  // no member can be lost in between
  for (const auto& [name, member] : fleet_.members()) {
    ++members[{member.hello.role(), StateOf(member)}];
    metrics_->SetHeartbeatAge(member.hello.role(), name,
                              absl::ToDoubleSeconds(registry_.Now() - member.report_time));
  }
  for (const v1::Role role : {v1::WORKER, v1::PS}) {
    for (const auto state :
         {MemberState::kAttached, MemberState::kDraining, MemberState::kSilent}) {
      metrics_->SetMembers(role, state, members[{role, state}]);
    }
  }
  for (const auto& [number, entry] : transaction.jobs()) ++jobs[entry->published->state()];
  for (int state = v1::QUEUED; state <= v1::CANCELLED; ++state) {
    metrics_->SetJobs(static_cast<v1::JobState>(state), jobs[state]);
  }
  CoordinatorMetrics::Workers wanted;
  for (const JobRegistry::Entry* entry : transaction.Active()) {
    const v1::Job& record = entry->job.record();
    const bool has_trouble = entry->job.trouble().has_value() ||
                             !registry_.changes().trouble().ok() ||
                             !registry_.MetricsTrouble(record.number()).ok();
    metrics_->SetJob(JobIdOf(record.name()), record, entry->origin.first_step, has_trouble);
    metrics_->SetSteps(JobIdOf(record.name()), entry->job.Timing());
  }
  metrics_->SetStates(StatesToShow(transaction));
  for (const auto& [number, entry] : transaction.jobs()) {
    const CoordinatorMetrics::Workers of_job = WorkersWanted(entry->job);
    wanted.min += of_job.min;
    wanted.max += of_job.max;
  }
  metrics_->SetWorkersWanted(wanted);
  metrics_->Publish();
}

}  // namespace muster
