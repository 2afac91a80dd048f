// Who is in the fleet now: the leases of members and the open streams that directives go down.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/membership/attachment.h"
#include "services/coordinator/membership/lease_table.h"

namespace muster {

// Thread-safe. Its mutex guards memory only and is the last one taken: nothing is stored, parsed or
// woken under it, so a lease is renewed whatever else the coordinator does. What a member's coming
// or going means for jobs is FleetDesk's business.
class Fleet {
 public:
  // What members are told of, and what is remembered of them.
  struct Options {
    std::string cluster;
    uint64_t term = 0;  // written into every directive
    absl::Duration lease;
    LeaseTable::Ordinals ordinals;
  };
  explicit Fleet(Options options);

  struct Arrival {
    std::shared_ptr<Attachment> attachment;  // the welcome is its first directive
    std::shared_ptr<Attachment> displaced;   // an older stream of this name, closed; or null
    bool replaces_member = false;            // by another process: what that one did is lost
    // Nobody of its name is known, and no coordinator has heard of this process: whom the store
    // has plans with was another one.
    bool is_newcomer = false;
    uint64_t ordinal = 0;
    bool is_first = false;    // of this process: its ordinal is new
    bool is_leaving = false;  // SetLeaving() was called for this process
  };
  // For the codes see LeaseTable::Attach; besides FAILED_PRECONDITION (reason "CLUSTER_CHANGED"):
  // the member belongs to another cluster; UNAVAILABLE (reason "COORDINATOR_OUTDATED"): it has seen
  // a later term than this one. The caller wakes what was displaced.
  absl::StatusOr<Arrival> Attach(const v1::Hello& hello, std::shared_ptr<StreamWaker> waker,
                                 absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // A report came, with these jobs. The status with which the stream was closed, if it was.
  absl::Status Renew(const Attachment& attachment, std::vector<std::string> jobs, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The member is given nothing new from now on. False: nobody of that name is attached.
  bool SetLeaving(const std::string& member) ABSL_LOCKS_EXCLUDED(mu_);

  enum class Departure {
    kOrderly,  // the member said good-bye: it is gone at once
    kBroken,   // it has its lease to come back
  };
  // What went with a stream: nothing, where the member had another one already.
  enum class Loss { kNothing, kStream, kMember };
  // The stream has ended.
  Loss Detach(const Attachment& attachment, Departure departure) ABSL_LOCKS_EXCLUDED(mu_);

  struct Expiry {
    std::string member;
    std::string why;
    absl::Duration silence;                  // nothing was heard of it
    std::shared_ptr<Attachment> attachment;  // closed, to be woken by the caller; or null
  };
  // Forgets the members whose lease has run out.
  std::vector<Expiry> TakeExpired(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is heard of anybody, see LeaseTable: what members do is not known, and no deadline of
  // theirs is to pass.
  bool deaf() const ABSL_LOCKS_EXCLUDED(mu_);

  // Puts a directive into the member's stream and wakes it; one for a member without a stream is
  // dropped. The term is filled in here. Call it without any lock.
  void Send(const std::string& member, MemberDirective told) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether the very process that said `hello` has an open stream.
  bool IsAttached(const v1::Hello& hello) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::btree_map<std::string, AttachedMember> members() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The member's stream, no longer known here; null where there is none.
  std::shared_ptr<Attachment> TakeAttachment(const std::string& member)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Status CheckCluster(const v1::Hello& hello) const;

  const std::string cluster_;
  const uint64_t term_;
  mutable absl::Mutex mu_;
  LeaseTable leases_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<Attachment>> attachments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
