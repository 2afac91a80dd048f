// The lease of every member: its hello, its last report, and how long it may stay silent.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

struct AttachedMember {
  v1::Hello hello;
  absl::Time attach_time;
  absl::Time report_time;
  absl::Time lease_begin;         // report_time, or later after delays or a partition
  bool attached = false;          // its stream is open
  bool leaving = false;           // gets no new work
  std::vector<std::string> jobs;  // as reported last
  uint64_t ordinal = 0;           // see Hello.ordinal
};

// The process that holds a name keeps it while its stream is open, except against a process with a
// higher ordinal. Each process gets an ordinal when it attaches for the first time. A process with
// a lower ordinal than another of its name has been replaced permanently. The end of a lease or a
// restart of the coordinator does not change that.
//
// Pure: time is an argument. Not thread-safe.
class LeaseTable {
 public:
  // Ordinals by name from earlier terms. `next_ordinal` is the first one of this term.
  using Ordinals = absl::flat_hash_map<std::string, uint64_t>;
  explicit LeaseTable(absl::Duration lease, Ordinals known = {}, uint64_t next_ordinal = 1)
      : lease_(lease), newest_(std::move(known)), next_ordinal_(next_ordinal) {}

  enum class Arrival {
    kNew,
    kReturned,  // the same incarnation, after a break
    kReplaced,  // a new process under the name of a member, whose state is lost
  };
  // Adds a member or reattaches it.
  // Returns INVALID_ARGUMENT for an invalid hello. Returns FAILED_PRECONDITION (reason "REPLACED")
  // if a newer process of that name has attached before. Returns UNAVAILABLE (reason "NAME_IN_USE")
  // if another process has an open stream under the name, and this one has no higher ordinal; it
  // may try again. Returns RESOURCE_EXHAUSTED if the fleet is full.
  absl::StatusOr<Arrival> Attach(const v1::Hello& hello, absl::Time now);

  // Renews the lease after a report. Requires: the member is known.
  void Renew(const std::string& member, std::vector<std::string> jobs, absl::Time now);

  // Marks a member that wants to leave or must leave. Its process keeps the mark. Requires: the
  // member is known.
  void SetLeaving(const std::string& member) { members_.at(member).leaving = true; }

  // Handles a broken stream. The lease continues, and the member may return.
  void Disconnect(const std::string& member);

  // Removes a member that left in order.
  void Remove(const std::string& member) { members_.erase(member); }

  // TakeExpired() must be called at least this often. The delay of a late call is added to every
  // lease: a coordinator that was stopped, or blocked by a disk or a lock, could not receive
  // reports either.
  static constexpr absl::Duration kCheckInterval = absl::Milliseconds(500);
  struct Expired {
    std::string member;
    absl::Duration silence;  // time since its last report
  };
  // Removes and returns members with expired leases.
  std::vector<Expired> TakeExpired(absl::Time now);

  // The longest silence of all members during which no lease ends. If no member reports, and at
  // least two have open streams, the coordinator is probably partitioned and the members are alive.
  // When a member reports again, every member gets a new lease.
  static constexpr absl::Duration kPartitionMax = absl::Seconds(30);
  // Returns true if the coordinator was partitioned at the last TakeExpired().
  bool partitioned() const { return partitioned_; }

  const AttachedMember* Find(const std::string& member) const;
  const absl::btree_map<std::string, AttachedMember>& members() const { return members_; }
  absl::Duration lease() const { return lease_; }

 private:
  absl::Status CheckName(const v1::Hello& hello) const;
  void Listen(absl::Time now);
  void Remember(const std::string& member, uint64_t ordinal);

  const absl::Duration lease_;
  absl::Time last_check_ = absl::InfiniteFuture();
  bool partitioned_ = false;
  // Time of the last report of any member, as of the last TakeExpired().
  absl::Time last_heard_ = absl::InfinitePast();
  absl::btree_map<std::string, AttachedMember> members_;
  Ordinals newest_;  // by member; at most limits::kMembersRememberedMax
  uint64_t next_ordinal_;
};

}  // namespace muster
