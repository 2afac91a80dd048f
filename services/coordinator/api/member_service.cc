#include "services/coordinator/api/member_service.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/api/attach_stream.h"
#include "services/coordinator/api/watched_stream.h"
#include "services/coordinator/checkpoints/shard_restore.h"

namespace muster {
namespace {

absl::Status OutOfOrder(absl::string_view what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("WriteShard: ", what)),
                    "INVALID_REQUEST");
}

absl::Status TakeSlices(const grpc::ServerContext& context,
                        grpc::ServerReader<v1::WriteShardRequest>& reader, CallWatch::Guard& guard,
                        absl::Duration stall_max, ShardUpload& upload) {
  guard.Advance(stall_max);
  for (v1::WriteShardRequest request; reader.Read(&request); guard.Advance(stall_max)) {
    guard.Advance(absl::InfiniteDuration());  // no limit while the coordinator's disk is slow
    if (!request.has_slice()) {
      return OutOfOrder("after the header only slices may follow");
    }
    RETURN_IF_ERROR(upload.Write(request.slice()));
  }
  if (guard.cancelled()) return Stalled("no slice has come", stall_max);
  guard.Advance(absl::InfiniteDuration());
  return context.IsCancelled() ? CallerGone() : absl::OkStatus();
}

using DirectStream =
    grpc::ServerReaderWriter<v1::WriteShardDirectResponse, v1::WriteShardDirectRequest>;

// Takes the reports of a member that writes its shard itself, up to the report that it has closed
// the files. No checkpoint may be committed before that, because an open file may still change.
absl::Status TakeWritten(DirectStream& stream, CallWatch::Guard& guard, absl::Duration stall_max,
                         std::vector<v1::WriteShardDirectResponse> layout, ShardUpload& upload) {
  guard.Advance(stall_max);
  if (upload.TakeFromBefore()) {
    layout.assign(1, {});
    layout[0].set_ready(true);
    layout[0].set_written(true);
  }
  for (const v1::WriteShardDirectResponse& message : layout) {
    if (!stream.Write(message)) return CallerGone();
  }
  for (v1::WriteShardDirectRequest request; stream.Read(&request); guard.Advance(stall_max)) {
    if (request.has_closed()) {
      guard.Advance(absl::InfiniteDuration());
      return absl::OkStatus();
    }
    if (!request.has_slice()) return OutOfOrder("after the header only slices may follow");
    RETURN_IF_ERROR(upload.NoteWritten(request.slice()));
  }
  return guard.cancelled() ? Stalled("nothing was written", stall_max) : CallerGone();
}

// Waits for the outcome of a periodic or final round, because its snapshots are acknowledged only
// after the checkpoint is committed. Until then a shard keeps the snapshot, and sends it again if
// the coordinator restarted in between. A snapshot on demand is requested again instead.
absl::Status AwaitCommit(const grpc::ServerContext& context, CheckpointRound& round) {
  if (round.snapshot() != 0) return absl::OkStatus();
  while (!context.IsCancelled()) {
    if (auto outcome = round.AwaitOutcome(kCallerCheck)) return *outcome;
  }
  return CallerGone();
}

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* MemberService::Attach(
    grpc::CallbackServerContext* context) {
  return new AttachStream(coordinator_, gate_,
                          gate_.Admit(*context, "Attach", Permission::kMember, CallKind::kAttach),
                          context);
}

grpc::Status MemberService::WriteShard(grpc::ServerContext* context,
                                       grpc::ServerReader<v1::WriteShardRequest>* reader,
                                       v1::WriteShardResponse*) {
  auto call = gate_.Admit(*context, "WriteShard", Permission::kMember, CallKind::kUpload);
  if (!call.ok()) return ToGrpc(call.status());
  CallWatch::Guard guard = gate_.Watch(context, gate_.watch->first_message_max());
  v1::WriteShardRequest first;
  if (!reader->Read(&first)) return ToGrpc(CallerGone());
  if (!first.has_header()) {
    return ToGrpc(OutOfOrder("the first message must be the header"));
  }
  auto upload = coordinator_->checkpoints().BeginShard(first.header(), call->caller.certificate);
  if (!upload.ok()) return ToGrpc(upload.status());
  if (!upload->has_value()) return grpc::Status::OK;
  const absl::Status ended = coordinator_->checkpoints().EndShard(
      **upload, TakeSlices(*context, *reader, guard, gate_.watch->stall_max(), **upload));
  // Releases the ticket: this call waits for other shards and must not keep them out.
  call->ticket.reset();
  return ToGrpc(ended.ok() ? AwaitCommit(*context, *(*upload)->round()) : ended);
}

grpc::Status MemberService::WriteShardDirect(grpc::ServerContext* context, DirectStream* stream) {
  auto call = gate_.Admit(*context, "WriteShardDirect", Permission::kMember, CallKind::kUpload);
  if (!call.ok()) return ToGrpc(call.status());
  CallWatch::Guard guard = gate_.Watch(context, gate_.watch->first_message_max());
  v1::WriteShardDirectRequest first;
  if (!stream->Read(&first)) return ToGrpc(CallerGone());
  if (!first.has_header()) return ToGrpc(OutOfOrder("the first message must be the header"));
  guard.Advance(absl::InfiniteDuration());  // no limit while the coordinator's disk is slow
  auto upload = coordinator_->checkpoints().BeginShard(first.header(), call->caller.certificate,
                                                       Checkpointer::Delivery::kDirect);
  if (!upload.ok()) return ToGrpc(upload.status());
  if (!upload->has_value()) return grpc::Status::OK;
  const absl::Status ended = coordinator_->checkpoints().EndShard(
      **upload, TakeWritten(*stream, guard, gate_.watch->stall_max(),
                            coordinator_->checkpoints().LayoutFor(**upload), **upload));
  // Releases the ticket as in WriteShard().
  call->ticket.reset();
  return ToGrpc(ended.ok() ? AwaitCommit(*context, *(*upload)->round()) : ended);
}

grpc::Status MemberService::ReadShard(grpc::ServerContext* context,
                                      const v1::ReadShardRequest* request,
                                      grpc::ServerWriter<v1::ShardSlice>* writer) {
  const auto call = gate_.Admit(*context, "ReadShard", Permission::kMember, CallKind::kRestore);
  if (!call.ok()) return ToGrpc(call.status());
  const auto source = coordinator_->checkpoints().FindRestore(*request, call->caller.certificate);
  if (!source.ok()) return ToGrpc(source.status());
  auto restore = ShardRestore::Open(source->plan, source->directory, request->shard());
  absl::Status read = restore.status();
  if (read.ok()) {
    CallWatch::Guard guard = gate_.Watch(context, gate_.watch->stall_max());
    read = SendAll(**restore, *writer, guard, gate_.watch->stall_max());
  }
  coordinator_->checkpoints().NoteRead(read);
  return ToGrpc(read);
}

}  // namespace muster
