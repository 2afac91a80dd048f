// Drives one worker as the coordinator does. For tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/worker/program/program_port.h"
#include "services/worker/worker.h"

namespace muster {

class Driven {
 public:
  Driven(InProcessNetwork& network, std::shared_ptr<const v1::JobPlan> plan, int rank = 0)
      : Driven(
            std::move(plan), [&network] { return network.MakeTransport(); }, rank) {}
  Driven(std::shared_ptr<const v1::JobPlan> plan, TransportFactory transport, int rank = 0,
         ProgramPort* programs = nullptr)
      : plan_(std::move(plan)),
        worker_({.member = plan_->workers(rank).member(),
                 .devices = {"cpu:0"},
                 .transport = std::move(transport),
                 .allow_programs = programs != nullptr,
                 .metrics = &metrics_,
                 .report_soon =
                     [this] {
                       absl::MutexLock lock(&mu_);
                       ++changes_;
                     },
                 .device_lost = [this] { ++devices_lost_; },
                 .programs = programs}) {}

  v1::Directive Directive() const {
    v1::Directive directive;
    directive.set_term(1);
    directive.set_job(plan_->job());
    directive.set_generation(plan_->generation());
    return directive;
  }
  void Prepare() {
    v1::Directive directive = Directive();
    *directive.mutable_prepare()->mutable_plan() = *plan_;
    worker_.Handle(directive);
  }
  void Start(int64_t total_steps) {
    v1::Directive directive = Directive();
    directive.mutable_start()->set_total_steps(total_steps);
    worker_.Handle(directive);
  }
  void Pause() {
    v1::Directive directive = Directive();
    directive.mutable_pause();
    worker_.Handle(directive);
  }
  void Halt() {
    v1::Directive directive = Directive();
    directive.mutable_halt();
    worker_.Handle(directive);
  }
  void Release() {
    v1::Directive directive = Directive();
    directive.mutable_release();
    worker_.Handle(directive);
  }

  // Blocks until a report satisfies the condition. The worker signals when there is a new report.
  std::vector<v1::JobReport> AwaitAll(
      const std::function<bool(const std::vector<v1::JobReport>&)>& expected) {
    for (int64_t seen = -1;;) {
      {
        absl::MutexLock lock(&mu_);
        auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return changes_ > seen; };
        if (!AwaitFor(&mu_, absl::Condition(&changed), absl::Seconds(30))) {
          ADD_FAILURE() << "no matching report; the last one is "
                        << (worker_.Report().empty() ? "none"
                                                     : worker_.Report()[0].ShortDebugString());
          return {};
        }
        seen = changes_;
      }
      std::vector<v1::JobReport> reports = worker_.Report();
      if (expected(reports)) return reports;
    }
  }
  v1::JobReport Await(const std::function<bool(const v1::JobReport&)>& expected) {
    const std::vector<v1::JobReport> reports =
        AwaitAll([&](const auto& reports) { return reports.size() == 1 && expected(reports[0]); });
    return reports.empty() ? v1::JobReport() : reports[0];
  }
  // Blocks until the worker has no job.
  void AwaitFree() {
    AwaitAll([](const auto& reports) { return reports.empty(); });
  }
  v1::JobReport Await(v1::MemberJobState state) {
    return Await([state](const v1::JobReport& report) { return report.state() == state; });
  }

  // Returns the number of early reports that the worker requested.
  int64_t reports_due() {
    absl::MutexLock lock(&mu_);
    return changes_;
  }
  int devices_lost() const { return devices_lost_; }
  Worker& worker() { return worker_; }
  std::string Rendered() const { return metrics_.Render(); }

 private:
  const std::shared_ptr<const v1::JobPlan> plan_;
  Metrics metrics_;
  absl::Mutex mu_;
  int64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<int> devices_lost_ = 0;
  Worker worker_;
};

}  // namespace muster
