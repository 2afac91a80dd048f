// The members that are in the fleet now: their leases, and the open streams for their directives.
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

// The fleet's mutex guards memory only and is always taken last: under it nothing is stored, parsed
// or woken. So the renewal of a lease never waits for other work of the coordinator. Membership
// handles the effects of members on jobs. Thread-safe.
class Fleet {
 public:
  // Values that members get, and what earlier terms stored about members.
  struct Options {
    std::string cluster;
    uint64_t term = 0;  // written into every directive
    absl::Duration lease;
    LeaseTable::Ordinals ordinals;
  };
  explicit Fleet(Options options);

  struct Arrival {
    std::shared_ptr<Attachment> attachment;  // its first directive is the welcome
    std::shared_ptr<Attachment> displaced;   // an older stream of this name, now closed; or null
    bool replaces_member = false;  // a process with this name was a member; its state is lost
    // No member has this name, and the process has never attached to a coordinator. So stored plans
    // with this name were made for another process.
    bool is_newcomer = false;
    uint64_t ordinal = 0;
    // The hello lacks this ordinal: the process attaches for the first time, or missed the welcome.
    bool is_first = false;
    bool is_leaving = false;  // SetLeaving() was called for this process
  };
  // Adds a member's stream. The caller must wake the displaced stream.
  // Returns an error of LeaseTable::Attach. Returns FAILED_PRECONDITION (reason "CLUSTER_CHANGED")
  // if the member belongs to another cluster. Returns UNAVAILABLE (reason "COORDINATOR_OUTDATED")
  // if it has seen a later term than this one.
  absl::StatusOr<Arrival> Attach(const v1::Hello& hello, std::shared_ptr<StreamWaker> waker,
                                 absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // Renews the lease after a report with these jobs. Returns the status with which the stream was
  // closed, if it was.
  absl::Status Renew(const Attachment& attachment, std::vector<std::string> jobs, absl::Time now)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Gives the member no new work from now on. Returns false if there is no member of that name.
  bool SetLeaving(const std::string& member) ABSL_LOCKS_EXCLUDED(mu_);

  enum class Departure {
    kOrderly,  // the member said goodbye: it is removed at once
    kBroken,   // the member may reattach until its lease expires
  };
  // The loss that the end of a stream means. kNothing: the member has another stream, or was
  // removed before.
  enum class Loss { kNothing, kStream, kMember };
  // Handles the end of a stream.
  Loss Detach(const Attachment& attachment, Departure departure) ABSL_LOCKS_EXCLUDED(mu_);

  struct Expiry {
    std::string member;
    std::string why;
    absl::Duration silence;                  // time since its last report
    std::shared_ptr<Attachment> attachment;  // closed; the caller must wake it; or null
  };
  // Removes and returns the members with expired leases.
  std::vector<Expiry> TakeExpired(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true if no member reports, see LeaseTable. Then the state of members is unknown, and
  // their deadlines must not pass.
  bool partitioned() const ABSL_LOCKS_EXCLUDED(mu_);

  // Puts a directive, with the term, into the member's stream and wakes it. Drops it if the member
  // has no stream.
  // Requires: the caller holds no lock.
  void Send(const std::string& member, MemberDirective told) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns true if the process that sent `hello` has an open stream.
  bool IsAttached(const v1::Hello& hello) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::btree_map<std::string, AttachedMember> members() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Removes and returns the member's stream; null if there is none.
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
