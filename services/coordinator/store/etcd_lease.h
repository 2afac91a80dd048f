// A lease of etcd that renews itself.
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

// Renewed three times per lifetime, and more often after a failed renewal. Its end is computed from
// the moment before each renewal request, by the clock of this process. So it ends here before it
// ends in etcd, even if the process was stopped in between. Thread-safe.
class EtcdLease {
 public:
  // `client` must outlive the lease. etcd grants at least about two seconds. Returns UNAVAILABLE or
  // another error of `client`.
  static absl::StatusOr<std::unique_ptr<EtcdLease>> Grant(EtcdClient* client,
                                                          absl::Duration time_to_live);
  // Ends the lease. Also revokes it in etcd, if etcd answers within half a second.
  ~EtcdLease();

  int64_t id() const { return id_; }
  bool holds() const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the remaining time; zero or negative if the lease has ended.
  absl::Duration left() const ABSL_LOCKS_EXCLUDED(mu_);

  // Interval at which a thread of the lease checks whether it has ended.
  static constexpr absl::Duration kLook = absl::Milliseconds(50);
  // Renews the lease from now on. If it ends nevertheless, calls `lost` once with the reason,
  // on a thread of the lease, at most kLook after the end. Call once.
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
  absl::Duration ends_ ABSL_GUARDED_BY(mu_);   // on SteadyNow()'s clock
  absl::Status trouble_ ABSL_GUARDED_BY(mu_);  // result of the last renewal
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Two threads: one waits for etcd while the other watches the clock.
  std::thread renewing_, guarding_;
};

}  // namespace muster
