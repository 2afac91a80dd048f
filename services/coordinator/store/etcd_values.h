// Named values in etcd, which only the leader among several coordinators writes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/third_party/etcd/rpc.pb.h"
#include "services/coordinator/store/etcd_client.h"
#include "services/coordinator/store/etcd_lease.h"

namespace muster {

// The leader has the key "leader", under a lease. Every etcd transaction that writes requires the
// create revision of that key. If another coordinator has the key, etcd writes nothing, the caller
// gets FAILED_PRECONDITION (reason "STORE_LOST"), and `lost` is called.
//
// If no server answers in time, the outcome of a transaction is unknown, and a delayed attempt may
// arrive after its retry. So each transaction also requires the revision of "meta/writing" that the
// previous one left, and puts its own number there. A transaction out of its turn writes nothing,
// and the key tells which transaction was last. A transaction that only deletes puts no number,
// because etcd accepts deletions even when its space is used up; repeating it before the next write
// is harmless.
//
//   leader                the leader's address
//   meta/term             number of leaderships so far
//   meta/writing          TERM/NUMBER of the last transaction with puts
//   part/NAME/WRITING/I   part I of a long value of NAME
//
// Every key except "leader" stores 'v' and the value itself, or 'p', the writing and the number of
// parts. Parts are written before the transaction that names them.
//
// Thread-safe. Calls block for etcd.
class EtcdValues {
 public:
  static constexpr int64_t kInlineBytesMax = 128 << 10;  // etcd takes 1.5 MB in one transaction
  static constexpr int64_t kPartBytesMax = 512 << 10;
  // Number of values in one page of a read. Each has up to kInlineBytesMax, so a slow link delivers
  // a page within the time limit of a read.
  static constexpr int kPage = 32;
  static constexpr char kTerm[] = "meta/term";
  static constexpr char kParts[] = "part/";
  static constexpr char kDamaged[] = "\xff";  // never parses as a message

  struct Options {
    EtcdClient* client = nullptr;  // must outlive the values
    std::string prefix;            // of all keys
    std::string address;           // of this coordinator, for callers of a standby
    absl::Duration lease;
    // Called when this process no longer leads; it must exit. May be called more than once, on any
    // thread.
    std::function<void(const absl::Status&)> lost;
    std::function<void(absl::Duration)> observe;  // called with the duration of every transaction
  };
  using Values = absl::btree_map<std::string, std::string>;  // by name
  // Becomes the leader, with a higher term. `prepare` gets the values under "meta/", none if the
  // store is new. It returns those that the same transaction writes, or an error to give up.
  // Returns UNAVAILABLE (reason "STORE_LOCKED") with the leader's address if there is a leader, or
  // an error of EtcdClient. Does not wait until another leader ends.
  static absl::StatusOr<std::unique_ptr<EtcdValues>> Lead(
      Options options, absl::FunctionRef<absl::StatusOr<Values>(const Values& meta)> prepare);
  // Removes the parts that a crash left. Must be called before the first Write() of a name that may
  // have parts.
  absl::Status SweepParts() ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t term() const { return term_; }
  // Returns OK while this process leads. Otherwise calls `lost` and returns STORE_LOST.
  absl::Status CheckLeads() const;

  // One transaction, by name. Parts are deleted with their names.
  struct Writing {
    Writing& Put(std::string name, std::string value) {
      puts[std::move(name)] = std::move(value);
      return *this;
    }
    Writing& Delete(std::string name) { return DeleteBetween(std::move(name), ""); }
    Writing& DeleteAllUnder(const std::string& prefix) {
      return DeleteBetween(prefix, BehindPrefix(prefix));
    }
    // Deletes the names from `first` to before `end`. "": `first` alone.
    Writing& DeleteBetween(std::string first, std::string end) {
      deletions.emplace_back(std::move(first), std::move(end));
      return *this;
    }

    Values puts;
    std::vector<std::pair<std::string, std::string>> deletions;
  };
  absl::Status Write(const Writing& writing) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns the value of a name, at a revision (0: now); nullopt if there is none.
  absl::StatusOr<std::optional<std::string>> Read(const std::string& name,
                                                  int64_t revision = 0) const;
  struct Part {
    int64_t revision = 0;   // 0: now
    std::string from = {};  // leaves out the names whose rest is before this
    int page = kPage;       // values in one page of the read
  };
  // Returns all values with names that begin with `prefix`, by the rest of the name. A damaged
  // value becomes kDamaged.
  absl::StatusOr<Values> ReadAll(const std::string& prefix, const Part& part) const;
  absl::StatusOr<Values> ReadAll(const std::string& prefix) const { return ReadAll(prefix, {}); }
  // Returns the present revision of etcd.
  absl::StatusOr<int64_t> Revision() const;

 private:
  explicit EtcdValues(Options options) : options_(std::move(options)) {}

  std::string Key(absl::string_view name) const;
  std::string NameOf(const etcdserverpb::KeyValue& pair) const;
  // Returns the value that `stored`, the content of a key, stands for.
  absl::StatusOr<std::string> Whole(const std::string& name, absl::string_view stored,
                                    int64_t revision = 0) const;
  absl::Status TakeLead(absl::FunctionRef<absl::StatusOr<Values>(const Values& meta)> prepare)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until etcd answers or this process no longer leads. After an error either nothing was
  // written, or the next call fails with STORE_LOST.
  absl::Status Transact(etcdserverpb::TxnRequest request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Lost() const;

  const Options options_;
  std::unique_ptr<EtcdLease> lease_;
  uint64_t term_ = 0;
  int64_t led_since_ = 0;  // revision in which our leader key was created

  absl::Mutex mu_;                                  // serializes writes
  uint64_t writings_ ABSL_GUARDED_BY(mu_) = 0;      // values written in this term
  uint64_t transactions_ ABSL_GUARDED_BY(mu_) = 0;  // in this term
  int64_t written_in_ ABSL_GUARDED_BY(mu_) = 0;     // the revision of meta/writing
  absl::btree_set<std::string> in_parts_
      ABSL_GUARDED_BY(mu_);  // Names that may have parts in etcd.
};

// Parses the text of a number. Returns DATA_LOSS (reason "STORE_CORRUPT") if it is none.
absl::StatusOr<uint64_t> NumberIn(absl::string_view name, absl::string_view text);

// Returns the number as text of 20 digits, so that names sort by number.
std::string Digits(uint64_t number);

}  // namespace muster
