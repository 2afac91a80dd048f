// What this process records for the coordinator's traces, and tells it.
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

// Thread-safe. Of several recordings each is of another job.
class TraceTeller {
 public:
  // What the job's work in this process is recorded in; null: it does nothing for the job.
  using Find = std::function<std::shared_ptr<Trace>(const std::string& job)>;
  // `report_soon`: there is something to tell; called on any thread, by recordings also after this
  // has gone.
  TraceTeller(Find find, std::function<void()> report_soon)
      : find_(std::move(find)), report_soon_(std::move(report_soon)) {}
  ~TraceTeller();  // ends what it has begun

  // A directive with a TraceOrder.
  void Handle(const v1::Directive& directive) ABSL_LOCKS_EXCLUDED(mu_);

  // Who asked is gone: ends what was begun for him, and forgets what he was to be told.
  void Forget() ABSL_LOCKS_EXCLUDED(mu_);

  // What there is to tell now, as much of it as one report holds. True: there is more.
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
  std::deque<v1::TracePart> probes_ ABSL_GUARDED_BY(mu_);                    // to be answered
  std::deque<v1::TracePart> parts_ ABSL_GUARDED_BY(mu_);                     // to be told
};

}  // namespace muster
