// A shard's client of MemberService: reads the checkpoint that a shard starts from, writes its
// snapshots.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "lib/fleet/channel.h"
#include "lib/limits/limits.h"
#include "lib/shard/core/parameter_shard.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/member.grpc.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Calls block until they succeed or fail for good. While the coordinator is away or busy, both
// calls retry with back-off from the beginning, without a limit. It is away if a call ends with
// UNAVAILABLE, was broken off, or missed its deadline; it is busy if it refuses the call with
// reason TOO_MANY_CALLS. Calls return CANCELLED once `stop` is requested. Thread-safe.
class CheckpointClient {
 public:
  // One attempt may take `call_max`, plus the time for its bytes at
  // limits::kCheckpointBytesPerSecondMin. `checkpoint_root` is the path, on this member, of the
  // coordinator's folder of all jobs; "" means that this member writes no files itself.
  explicit CheckpointClient(CoordinatorTarget target, std::string checkpoint_root = "",
                            absl::Duration call_max = limits::kCheckpointCallMax);

  // Fills `shard` from the plan's checkpoint. Returns DATA_LOSS if a slice's checksum is wrong or
  // bytes are missing, INVALID_ARGUMENT if a slice does not belong to the shard. Calls `advanced`,
  // if not null, with the number of bytes that have arrived for the first time; bytes read again by
  // a retry do not count.
  absl::Status ReadShard(ParameterShard& shard, std::stop_token stop,
                         const std::function<void(int64_t bytes)>& advanced = nullptr);

  // Returns OK once the coordinator acknowledged the snapshot. If checkpoint.mode is direct, writes
  // the shard's bytes below the root. If that fails, or if the coordinator answers DIRECT_OFF,
  // sends them to the coordinator instead. Tells it the reason of a failure.
  absl::Status WriteShard(const v1::JobPlan& plan, const ShardSnapshot& snapshot,
                          std::stop_token stop);

 private:
  using Stub = v1::MemberService::Stub;
  using Attempt = std::function<absl::Status(Stub&, grpc::ClientContext&)>;
  // A connection to the address to try now.
  struct Connection {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<Stub> stub;
  };
  Connection Connect() const ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `attempt` until it succeeds. `what` names it in the log; `bytes` extends its deadline.
  absl::Status Retry(absl::string_view what, int64_t bytes, const Attempt& attempt,
                     const std::stop_token& stop) const;
  // Calls `read` with the number of bytes of the shard that have arrived so far.
  absl::Status ReadOnce(Stub& stub, ParameterShard& shard, grpc::ClientContext& context,
                        absl::FunctionRef<void(int64_t bytes)> read);
  absl::Status WriteOnce(Stub& stub, const v1::WriteShardHeader& header,
                         const ShardSnapshot& snapshot, grpc::ClientContext& context);
  // Sets `trouble` to the local error if that is why the attempt failed.
  absl::Status WriteDirectOnce(Stub& stub, const v1::WriteShardHeader& header,
                               const ShardSnapshot& snapshot, grpc::ClientContext& context,
                               std::string& trouble) const;

  const CoordinatorTarget target_;
  const std::string checkpoint_root_;
  const absl::Duration call_max_;
  mutable absl::Mutex mu_;
  mutable Connection connection_ ABSL_GUARDED_BY(mu_);  // the latest one
};

}  // namespace muster
