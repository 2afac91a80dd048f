#include "services/coordinator/store/etcd_lease.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::Duration kGrantMax = absl::Seconds(2);
constexpr absl::Duration kRevokeMax = absl::Milliseconds(500);
constexpr absl::Duration kAgain = absl::Milliseconds(100);  // after a failed renewal

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdLease>> EtcdLease::Grant(EtcdClient* client,
                                                            absl::Duration time_to_live) {
  const absl::Duration asked = SteadyNow();
  ASSIGN_OR_RETURN(const auto granted, client->Grant(time_to_live, kGrantMax));
  const absl::Duration given = absl::Seconds(granted.ttl());
  return std::unique_ptr<EtcdLease>(new EtcdLease(client, granted.id(), given, asked + given));
}

EtcdLease::EtcdLease(EtcdClient* client, int64_t id, absl::Duration time_to_live,
                     absl::Duration ends)
    : client_(client), id_(id), time_to_live_(time_to_live), ends_(ends) {}

EtcdLease::~EtcdLease() {
  bool ended;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    ended = SteadyNow() >= ends_;
  }
  if (renewing_.joinable()) renewing_.join();
  if (guarding_.joinable()) guarding_.join();
  if (!ended) client_->Revoke(id_, kRevokeMax).IgnoreError();  // an ended lease needs no call
}

bool EtcdLease::holds() const { return left() > absl::ZeroDuration(); }

absl::Duration EtcdLease::left() const {
  absl::MutexLock lock(&mu_);
  return ends_ - SteadyNow();
}

void EtcdLease::Keep(std::function<void(const absl::Status&)> lost) {
  lost_ = std::move(lost);
  renewing_ = std::thread([this] { Renew(); });
  guarding_ = std::thread([this] { Guard(); });
}

void EtcdLease::Renew() {
  absl::Duration pause = time_to_live_ / 3;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (AwaitFor(&mu_, absl::Condition(&stopping_), pause)) return;
      if (SteadyNow() >= ends_) return;
    }
    const absl::Duration asked = SteadyNow();
    const auto renewed = client_->KeepAlive(id_, time_to_live_ / 3);
    absl::MutexLock lock(&mu_);
    // A lease that ended by this clock stays ended, even if etcd renewed it: the guard has reported
    // it.
    if (SteadyNow() >= ends_) return;
    trouble_ = renewed.status();
    pause = renewed.ok() ? time_to_live_ / 3 : kAgain;
    if (renewed.ok()) ends_ = asked + *renewed;
    if (absl::IsNotFound(renewed.status())) ends_ = SteadyNow();
  }
}

void EtcdLease::Guard() {
  absl::Status why;
  {
    absl::MutexLock lock(&mu_);
    while (SteadyNow() < ends_) {
      if (AwaitFor(&mu_, absl::Condition(&stopping_), kLook)) return;
    }
    why = trouble_;
  }
  lost_(WithReason(
      absl::FailedPreconditionError(absl::StrCat(
          "the lease in etcd has ended: ",
          why.ok() ? "this process was stopped, or etcd lost the lease" : why.message())),
      "STORE_LOST"));
}

}  // namespace muster
