// Limits concurrent calls. Every call that may take long, or hold memory or a thread, is counted by
// kind and client.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace muster {

// The counted kinds of calls. Admission::DefaultLimits() has their limits.
enum class CallKind : uint8_t {
  kCreate,    // CreateJob: imports a model, opens data
  kWatch,     // WatchJob, WatchJobs
  kDownload,  // ReadCheckpoint
  kSave,      // SaveCheckpoint, which waits
  kAttach,    // a member's stream
  kUpload,    // WriteShard, WriteShardDirect
  kRestore,   // ReadShard
  kQuery,     // lists, metrics, links: read files and the store, or copy much
  kReflection,
  kModelUpload,  // UploadModel
};
inline constexpr int kCallKinds = 10;

// Must outlive its tickets. Thread-safe.
class Admission {
 public:
  struct Limit {
    int total = 0;
    int per_client = 0;  // a client is a connection
  };
  using LimitsByKind = std::array<Limit, kCallKinds>;
  static LimitsByKind DefaultLimits();

  explicit Admission(const LimitsByKind& limits = DefaultLimits()) : limits_(limits) {}

  // A call in progress. It ends with the last copy.
  using Ticket = std::shared_ptr<void>;

  // Admits a call. `client` is grpc::ServerContext::peer(). Returns RESOURCE_EXHAUSTED (reason
  // "TOO_MANY_CALLS") with the limit that is reached.
  absl::StatusOr<Ticket> Enter(CallKind kind, absl::string_view client) ABSL_LOCKS_EXCLUDED(mu_);

  int under_way(CallKind kind) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Count {
    int total = 0;
    absl::flat_hash_map<std::string, int> of_client;
  };

  void Leave(CallKind kind, const std::string& client) ABSL_LOCKS_EXCLUDED(mu_);

  const LimitsByKind limits_;
  mutable absl::Mutex mu_;
  std::array<Count, kCallKinds> counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
