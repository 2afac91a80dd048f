// A fake member for tests of the coordinator.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/membership/attachment.h"

namespace muster {

// A member without a network. It answers directives at once with their final state.
struct FakeMember {
  v1::Hello hello;
  std::shared_ptr<Attachment> attachment;
  std::map<std::string, v1::JobReport> jobs;
  std::map<std::string, v1::JobPlan> plans;
  std::vector<v1::Snapshot> snapshots;  // requested by the coordinator

  v1::MemberReport Report() const {
    v1::MemberReport report;
    for (const auto& [id, job] : jobs) *report.add_jobs() = job;
    return report;
  }

  void Obey(const v1::Directive& directive) {
    if (directive.has_welcome()) {
      hello.set_cluster(directive.welcome().cluster());
      hello.set_ordinal(directive.welcome().ordinal());
      hello.set_term(directive.term());
      return;
    }
    v1::JobReport& job = jobs[directive.job()];
    job.set_job(directive.job());
    job.set_generation(directive.generation());
    if (directive.has_prepare()) {
      job.set_rehearsal(directive.prepare().plan().rehearsal());
      plans[directive.job()] = directive.prepare().plan();
      job.set_state(v1::MEMBER_PREPARED);
      job.set_next_step(directive.prepare().plan().first_step());
      if (hello.role() == v1::WORKER) job.mutable_dataset()->set_samples(64);
    } else if (directive.has_start()) {
      job.set_state(v1::MEMBER_RUNNING);
    } else if (directive.has_pause()) {
      job.set_state(v1::MEMBER_PAUSED);
    } else if (directive.has_snapshot()) {
      snapshots.push_back(directive.snapshot());
    } else if (directive.has_acknowledge()) {
      auto& steps = *job.mutable_steps();
      steps.erase(std::remove_if(steps.begin(), steps.end(),
                                 [&](const v1::StepRecord& record) {
                                   return record.step() < directive.acknowledge().steps_before();
                                 }),
                  steps.end());
    } else if (directive.has_release()) {
      jobs.erase(directive.job());
    }
  }

  // Finishes one step.
  void Step(const std::string& id) {
    v1::JobReport& job = jobs.at(id);
    v1::StepRecord& record = *job.add_steps();
    record.set_step(job.next_step());
    record.set_loss_share(1.0 / (1 + job.next_step()));
    record.set_step_seconds(0.1);
    job.set_next_step(job.next_step() + 1);
  }
};

}  // namespace muster
