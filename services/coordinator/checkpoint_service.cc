#include "services/coordinator/checkpoint_service.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/checkpoint_files.h"
#include "services/coordinator/shard_restore.h"

namespace muster {
namespace {

// How often a waiting call looks whether its caller is still there.
constexpr absl::Duration kCallerCheck = absl::Seconds(1);

absl::Status CallerGone() { return absl::CancelledError("the caller is gone"); }

absl::Status OutOfOrder(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("WriteShard: ", what)),
                    "INVALID_REQUEST");
}

// Everything that `source` has, into the stream.
template <typename Source, typename Message>
absl::Status SendAll(Source& source, grpc::ServerWriter<Message>& writer) {
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Message> next, source.Next());
    if (!next) return absl::OkStatus();
    if (!writer.Write(*next)) return CallerGone();
  }
}

absl::Status TakeSlices(const grpc::ServerContext& context,
                        grpc::ServerReader<v1::WriteShardRequest>& reader, ShardUpload& upload) {
  for (v1::WriteShardRequest request; reader.Read(&request);) {
    if (!request.has_slice()) {
      return OutOfOrder("after the header only slices may follow");
    }
    RETURN_IF_ERROR(upload.Write(request.slice()));
  }
  return context.IsCancelled() ? CallerGone() : absl::OkStatus();
}

// A periodic or final snapshot is acknowledged once its checkpoint is committed: until then a shard
// keeps it, and sends it again to a coordinator that died in between. One on demand is asked for
// again instead.
absl::Status AwaitCommit(const grpc::ServerContext& context, CheckpointRound& round) {
  if (round.snapshot() != 0) return absl::OkStatus();
  while (!context.IsCancelled()) {
    if (auto outcome = round.AwaitOutcome(kCallerCheck)) return *outcome;
  }
  return CallerGone();
}

}  // namespace

grpc::Status CheckpointService::ListCheckpoints(grpc::ServerContext*,
                                                const v1::ListCheckpointsRequest* request,
                                                v1::ListCheckpointsResponse* response) {
  auto checkpoints = coordinator_->ListCheckpoints(request->parent());
  if (!checkpoints.ok()) return ToGrpc(checkpoints.status());
  response->mutable_checkpoints()->Assign(checkpoints->begin(), checkpoints->end());
  return grpc::Status::OK;
}

grpc::Status CheckpointService::GetCheckpoint(grpc::ServerContext*,
                                              const v1::GetCheckpointRequest* request,
                                              v1::Checkpoint* response) {
  auto checkpoint = coordinator_->GetCheckpoint(request->name());
  if (checkpoint.ok()) *response = *std::move(checkpoint);
  return ToGrpc(checkpoint.status());
}

grpc::Status CheckpointService::SaveCheckpoint(grpc::ServerContext* context,
                                               const v1::SaveCheckpointRequest* request,
                                               v1::Checkpoint* response) {
  const auto step = coordinator_->RequestCheckpoint(request->job());
  if (!step.ok()) return ToGrpc(step.status());
  while (!context->IsCancelled()) {
    auto checkpoint = coordinator_->AwaitCheckpoint(request->job(), *step, kCallerCheck);
    if (!checkpoint.ok()) return ToGrpc(checkpoint.status());
    if (!checkpoint->has_value()) continue;
    *response = **std::move(checkpoint);
    return grpc::Status::OK;
  }
  return ToGrpc(CallerGone());
}

grpc::Status CheckpointService::ReadCheckpoint(
    grpc::ServerContext*, const v1::ReadCheckpointRequest* request,
    grpc::ServerWriter<v1::ReadCheckpointResponse>* writer) {
  const auto checkpoint = coordinator_->GetCheckpoint(request->name());
  if (!checkpoint.ok()) return ToGrpc(checkpoint.status());
  auto files = CheckpointFiles::Open(*checkpoint, *request);
  return ToGrpc(files.ok() ? SendAll(*files, *writer) : files.status());
}

grpc::Status CheckpointService::WriteShard(grpc::ServerContext* context,
                                           grpc::ServerReader<v1::WriteShardRequest>* reader,
                                           v1::WriteShardResponse*) {
  v1::WriteShardRequest first;
  if (!reader->Read(&first)) return ToGrpc(CallerGone());
  if (!first.has_header()) {
    return ToGrpc(OutOfOrder("the first message must be the header"));
  }
  auto upload = coordinator_->BeginShard(first.header());
  if (!upload.ok()) return ToGrpc(upload.status());
  if (!upload->has_value()) return grpc::Status::OK;
  const absl::Status ended =
      coordinator_->EndShard(**upload, TakeSlices(*context, *reader, **upload));
  return ToGrpc(ended.ok() ? AwaitCommit(*context, *(*upload)->round()) : ended);
}

grpc::Status CheckpointService::ReadShard(grpc::ServerContext*, const v1::ReadShardRequest* request,
                                          grpc::ServerWriter<v1::ShardSlice>* writer) {
  const auto source = coordinator_->FindRestore(*request);
  if (!source.ok()) return ToGrpc(source.status());
  auto restore = ShardRestore::Open(source->plan, source->directory, request->shard());
  return ToGrpc(restore.ok() ? SendAll(**restore, *writer) : restore.status());
}

}  // namespace muster
