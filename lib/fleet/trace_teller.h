// Records trace events for the coordinator, and reports them to it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/synchronization/mutex.h"
#include "lib/telemetry/trace.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Carries out the coordinator's trace orders. Records at most one trace per job. Thread-safe.
class TraceTeller {
 public:
  // Returns the trace in which this process records the job's work; null if it does no work for the
  // job.
  using Find = std::function<std::shared_ptr<Trace>(const std::string& job)>;
  // `report_soon` is called when there is something to report, on any thread. Recordings may call
  // it even after the teller is destroyed.
  TraceTeller(Find find, std::function<void()> report_soon)
      : find_(std::move(find)), report_soon_(std::move(report_soon)) {}
  ~TraceTeller();  // stops all recordings

  // Carries out a directive that has a TraceOrder.
  void Handle(const v1::Directive& directive) ABSL_LOCKS_EXCLUDED(mu_);

  // The coordinator that asked is gone: stops its recordings and drops the unsent answers.
  void Forget() ABSL_LOCKS_EXCLUDED(mu_);

  // Adds unsent parts to `report`, as many as one report may hold. Returns true if more remain.
  bool AddTo(v1::MemberReport& report) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Recording {
    uint64_t request = 0;
    std::shared_ptr<Trace> trace;
    bool over_told = false;
  };

  void Record(const std::string& job, const v1::TraceOrder& order)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const std::string& job, const v1::TraceOrder& order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Excuse(const v1::TraceOrder& order, const std::string& trouble)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Find find_;
  const std::function<void()> report_soon_;
  absl::Mutex mu_;
  absl::btree_map<std::string, Recording> recordings_ ABSL_GUARDED_BY(mu_);  // by job
  std::deque<v1::TracePart> probes_ ABSL_GUARDED_BY(mu_);  // answers to probes, unsent
  std::deque<v1::TracePart> parts_ ABSL_GUARDED_BY(mu_);   // recorded parts, unsent
};

}  // namespace muster
