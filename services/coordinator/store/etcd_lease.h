// A lease of etcd, kept alive for as long as that can be believed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "services/coordinator/store/etcd_client.h"

namespace muster {

// Renewed three times in its life, and again at once where that fails. It counts from the moment
// before a renewal was asked for, by a clock of this process: so it has ended here before it ends
// in etcd, also for a process that was stopped in between. Thread-safe.
class EtcdLease {
 public:
  // UNAVAILABLE and the other errors of `client`, which outlives the lease. etcd gives no less than
  // some two seconds.
  static absl::StatusOr<std::unique_ptr<EtcdLease>> Grant(EtcdClient* client,
                                                          absl::Duration time_to_live);
  // Ends it, in etcd too if that answers soon.
  ~EtcdLease();

  int64_t id() const { return id_; }
  // Whether it has not ended.
  bool holds() const ABSL_LOCKS_EXCLUDED(mu_);
  // What is left of it; less than nothing: it has ended.
  absl::Duration left() const ABSL_LOCKS_EXCLUDED(mu_);

  // From now on the lease is renewed, until it cannot be: then `lost` is told why, once, on a
  // thread of the lease's own, at most kLook after the lease has ended. Once.
  static constexpr absl::Duration kLook = absl::Milliseconds(50);
  void Keep(std::function<void(const absl::Status&)> lost);

 private:
  EtcdLease(EtcdClient* client, int64_t id, absl::Duration time_to_live, absl::Duration ends);

  void Renew() ABSL_LOCKS_EXCLUDED(mu_);
  void Guard() ABSL_LOCKS_EXCLUDED(mu_);

  EtcdClient* const client_;
  const int64_t id_;
  const absl::Duration time_to_live_;
  std::function<void(const absl::Status&)> lost_;
  mutable absl::Mutex mu_;
  absl::Duration ends_ ABSL_GUARDED_BY(mu_);   // of SteadyNow()
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);  // of the last renewal
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Two: one waits for etcd while the other looks at the clock.
  std::thread renewing_, guarding_;
};

}  // namespace muster
