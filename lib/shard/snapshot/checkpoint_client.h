// A shard's side of MemberService: reads what a shard starts from, writes what it keeps.
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

// Thread-safe; calls block. While the coordinator is away (UNAVAILABLE, a call that it broke off or
// that it did not end in time) both retry with back-off, from the beginning, for as long as it
// takes; CANCELLED once `stop` is requested.
class CheckpointClient {
 public:
  // A call may take `call_max`, and what its bytes take at limits::kCheckpointBytesPerSecondMin.
  // `checkpoint_root`: what the coordinator calls the folder of all jobs, here; "": this member
  // writes no files itself.
  explicit CheckpointClient(CoordinatorTarget target, std::string checkpoint_root = "",
                            absl::Duration call_max = limits::kCheckpointCallMax);

  // Fills `shard` from the plan's checkpoint. DATA_LOSS when a slice's checksum is wrong or bytes
  // are missing. `advanced` is told of bytes when they have come for the first time, whatever is
  // read again; it may be null.
  absl::Status ReadShard(ParameterShard& shard, std::stop_token stop,
                         const std::function<void(int64_t bytes)>& advanced = nullptr);

  // OK once the coordinator acknowledged. A job whose checkpoint.mode is direct has the shard's
  // bytes written below the root; whatever goes wrong there, they are sent instead, and the
  // coordinator is told why.
  absl::Status WriteShard(const v1::JobPlan& plan, const ShardSnapshot& snapshot,
                          std::stop_token stop);

 private:
  using Stub = v1::MemberService::Stub;
  using Attempt = std::function<absl::Status(Stub&, grpc::ClientContext&)>;
  // Of the address that is to be tried now.
  struct Connection {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::shared_ptr<Stub> stub;
  };
  Connection Connect() const ABSL_LOCKS_EXCLUDED(mu_);

  // `what` of `bytes` bytes is tried, for the log.
  absl::Status Retry(absl::string_view what, int64_t bytes, const Attempt& attempt,
                     const std::stop_token& stop) const;
  // `read` is told how many bytes of the shard have come by now.
  absl::Status ReadOnce(Stub& stub, ParameterShard& shard, grpc::ClientContext& context,
                        absl::FunctionRef<void(int64_t bytes)> read);
  absl::Status WriteOnce(Stub& stub, const v1::WriteShardHeader& header,
                         const ShardSnapshot& snapshot, grpc::ClientContext& context);
  // `trouble`: what went wrong on this side, if that is why it failed.
  absl::Status WriteDirectOnce(Stub& stub, const v1::WriteShardHeader& header,
                               const ShardSnapshot& snapshot, grpc::ClientContext& context,
                               std::string& trouble) const;

  const CoordinatorTarget target_;
  const std::string checkpoint_root_;
  const absl::Duration call_max_;
  mutable absl::Mutex mu_;
  mutable Connection connection_ ABSL_GUARDED_BY(mu_);  // that was asked for last
};

}  // namespace muster
