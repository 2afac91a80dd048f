// A job for tests, which play its scheduler, members and clock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "services/coordinator/job/job.h"
#include "services/coordinator/scheduling/job_plan.h"

namespace muster {

// A job with two workers and two ps (one shard each) that trains 100 steps.
class JobTest : public ::testing::Test {
 protected:
  JobTest() : job_(Record(), nullptr, /*term=*/1, now_) {}

  static v1::Job Record() {
    v1::Job record;
    record.set_name("jobs/net-1");
    record.set_number(1);
    record.set_state(v1::QUEUED);
    record.set_revision(1);
    v1::JobSpec& spec = *record.mutable_spec();
    spec.mutable_data()->set_batch_size(8);
    spec.mutable_training()->set_steps(100);
    spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
    spec.mutable_checkpoint()->set_every_steps(50);
    spec.set_chunk_bytes(1024);
    spec.mutable_restart()->set_max_restarts(0);
    return record;
  }

  void Schedule(int64_t first_step = 0, const std::string& restore = "",
                std::shared_ptr<const v1::JobPlan> carried = nullptr,
                std::vector<v1::PlanShard> shards = {}) {
    if (carried != nullptr && shards.empty()) {
      shards = {carried->shards().begin(), carried->shards().end()};
    }
    PlanRequest request{.job = job_.record(),
                        .restore = restore,
                        .first_step = first_step,
                        .carried = std::move(carried),
                        .shards = std::move(shards)};
    v1::Parameter& parameter = *request.graph.add_parameters();
    parameter.set_name("weight");
    parameter.add_shape(512);
    for (const char* name : {"p-0", "p-1"}) {
      v1::Hello& ps = request.ps.emplace_back();
      ps.set_member(name);
      ps.add_addresses("address");
    }
    for (const char* name : {"w-0", "w-1"}) request.workers.emplace_back().set_member(name);
    job_.Schedule(MakePlan(std::move(request)), now_, trained_);
  }

  v1::JobReport Say(v1::MemberJobState state, int64_t next_step = 0) const {
    v1::JobReport report;
    report.set_job("net-1");
    report.set_generation(job_.record().generation());
    report.set_state(state);
    report.set_next_step(next_step);
    if (state != v1::MEMBER_PREPARING) {
      report.mutable_dataset()->set_samples(1000);
      report.mutable_dataset()->set_fingerprint(fingerprint_);
    }
    return report;
  }
  void Report(const std::string& member, v1::MemberJobState state, int64_t next_step = 0) {
    const v1::JobReport report = Say(state, next_step);
    job_.Report(member, &report, now_);
  }
  void ReportAll(v1::MemberJobState workers, v1::MemberJobState ps, int64_t next_step = 0) {
    for (const char* name : {"w-0", "w-1"}) Report(name, workers, next_step);
    for (const char* name : {"p-0", "p-1"}) Report(name, ps, next_step);
  }
  void Run(int64_t first_step = 0, const std::string& restore = "") {
    Schedule(first_step, restore);
    ReportAll(v1::MEMBER_PREPARED, v1::MEMBER_PREPARED);
    ReportAll(v1::MEMBER_RUNNING, v1::MEMBER_RUNNING, first_step);
    job_.TakeEffects();
  }
  void UseExternalModel() {
    v1::Job record = job_.record();
    record.mutable_spec()->mutable_model()->mutable_external();
    job_ = Job(record, nullptr, /*term=*/1, now_);
  }
  void IgnoreNonFinite() {
    v1::Job record = job_.record();
    record.mutable_spec()->set_on_non_finite(v1::NON_FINITE_IGNORE);
    job_ = Job(record, nullptr, /*term=*/1, now_);
  }
  void Answer(const std::string& ps, int shard, uint64_t snapshot, v1::SnapshotOutcome outcome) {
    v1::JobReport report = Say(v1::MEMBER_RUNNING);
    v1::SnapshotReport& answer = *report.add_snapshots();
    answer.set_shard(shard);
    answer.set_snapshot(snapshot);
    answer.set_outcome(outcome);
    job_.Report(ps, &report, now_);
  }
  // Returns the job's effects, and marks its records as durable.
  Job::Effects TakeEffects() {
    Job::Effects effects = job_.TakeEffects();
    if (effects.records) job_.RecordsDurable(*effects.records, now_);
    return effects;
  }
  void Commit(int64_t step) {
    v1::Checkpoint checkpoint;
    checkpoint.set_step(step);
    checkpoint.set_name(absl::StrCat("jobs/net-1/checkpoints/", step));
    job_.CheckpointCommitted(checkpoint, now_);
  }

  // Returns the directives sent since the last call, as "w-0 kStart".
  std::vector<std::string> Sent() {
    std::vector<std::string> sent;
    for (const Job::Outgoing& out : job_.TakeEffects().directives) {
      const auto* field = v1::Directive::descriptor()->FindFieldByNumber(out.directive.kind_case());
      sent.push_back(out.member + " " + field->name());
      if (out.directive.has_snapshot()) snapshot_ = out.directive.snapshot();
    }
    return sent;
  }
  void Pass(absl::Duration time) {
    now_ += time;
    job_.Tick(/*writing=*/false, now_);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  Job job_;
  TrainedData trained_;      // of the checkpoint that Schedule() starts from
  std::string fingerprint_;  // that workers report
  v1::Snapshot snapshot_;    // the last Snapshot directive that Sent() has seen
};

}  // namespace muster
