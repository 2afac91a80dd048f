// Which directives a job sent to its members, so that one that may be lost is sent again.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Knows the last directive of each member. Pure: the caller passes the time. Not thread-safe.
class Outbox {
 public:
  // How long until a directive that is still desired is sent again, because it may be lost.
  static constexpr absl::Duration kResend = absl::Seconds(2);

  // Whether to send the directive to the member now. If true, counts it as sent. False if the same
  // directive was sent less than kResend ago. Directives are the same if their kind and their
  // snapshot are.
  bool IsDue(const std::string& member, const v1::Directive& directive, absl::Time now);
  // Directives to the member may be lost, or mean something else from now on.
  void Forget(const std::string& member) { sent_.erase(member); }
  void ForgetAll() { sent_.clear(); }

 private:
  struct Sent {
    v1::Directive::KindCase kind = v1::Directive::KIND_NOT_SET;
    uint64_t snapshot = 0;
    absl::Time time = absl::InfinitePast();
  };

  absl::btree_map<std::string, Sent> sent_;  // by member
};

}  // namespace muster
