// Who is in the fleet: every member's hello, its last report, and until when it may be away.
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
  absl::Time lease_begin;         // report_time, and what the coordinator was late since
  bool attached = false;          // its stream is open
  bool leaving = false;           // is given nothing new
  std::vector<std::string> jobs;  // that it reported last
  uint64_t ordinal = 0;           // see Hello.ordinal
};

// Who holds a name keeps it while its stream is open. Processes are ordered: each is given an
// ordinal when it comes for the first time, and whoever has a lower one than another of its name
// has been replaced for good, however long ago and whatever was restarted since.
//
// Pure; time comes in; not thread-safe.
class LeaseTable {
 public:
  // Ordinals by name that earlier terms gave, and the first one to give in this term.
  using Ordinals = absl::flat_hash_map<std::string, uint64_t>;
  explicit LeaseTable(absl::Duration lease, Ordinals known = {}, uint64_t next_ordinal = 1)
      : lease_(lease), newest_(std::move(known)), next_ordinal_(next_ordinal) {}

  enum class Arrival {
    kNew,
    kReturned,  // the same incarnation, after a break
    kReplaced,  // a new process under a name that another held: what that one did is lost
  };
  // INVALID_ARGUMENT: a hello that cannot be; FAILED_PRECONDITION (reason "REPLACED"): a newer
  // process of that name has been here; UNAVAILABLE (reason "NAME_IN_USE"): another one has an open
  // stream, try again; RESOURCE_EXHAUSTED: the fleet is full.
  absl::StatusOr<Arrival> Attach(const v1::Hello& hello, absl::Time now);

  // A report came. The member must be known.
  void Renew(const std::string& member, std::vector<std::string> jobs, absl::Time now);

  // The member wants to end, or is told to, and its process stays one that does. It must be known.
  void SetLeaving(const std::string& member) { members_.at(member).leaving = true; }

  // The stream broke: the lease runs on, the member may return.
  void Disconnect(const std::string& member);

  // The member left in order.
  void Remove(const std::string& member) { members_.erase(member); }

  // Forgets and returns those whose lease ran out. Call at least every kCheckInterval: what a call
  // is later than that is added to every lease, because whoever could not look, stopped, on a disk
  // that stands still or behind a lock, could not hear either.
  static constexpr absl::Duration kCheckInterval = absl::Milliseconds(500);
  struct Expired {
    std::string member;
    absl::Duration silence;  // nothing was heard of it
  };
  std::vector<Expired> TakeExpired(absl::Time now);

  // Where nothing is heard of anybody, of two members with open streams at least, it is rather the
  // coordinator that is cut off than all of them that are lost: no lease ends until somebody is
  // heard again, from when everybody has his lease anew, or this time is over.
  static constexpr absl::Duration kDeafMax = absl::Seconds(30);
  // As of the last TakeExpired().
  bool deaf() const { return deaf_; }

  const AttachedMember* Find(const std::string& member) const;
  const absl::btree_map<std::string, AttachedMember>& members() const { return members_; }
  absl::Duration lease() const { return lease_; }

 private:
  absl::Status CheckName(const v1::Hello& hello) const;
  void Listen(absl::Time now);
  void Remember(const std::string& member, uint64_t ordinal);

  const absl::Duration lease_;
  absl::Time last_check_ = absl::InfiniteFuture();
  bool deaf_ = false;
  absl::Time last_heard_ = absl::InfinitePast();  // the last report of all, at that time
  absl::btree_map<std::string, AttachedMember> members_;
  Ordinals newest_;  // by member; of the last limits::kMembersRememberedMax
  uint64_t next_ordinal_;
};

}  // namespace muster
