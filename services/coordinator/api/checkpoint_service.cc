#include "services/coordinator/api/checkpoint_service.h"

#include <utility>

#include "lib/status/grpc_status.h"
#include "services/coordinator/api/watched_stream.h"
#include "services/coordinator/checkpoints/checkpoint_files.h"

namespace muster {

grpc::Status CheckpointService::ListCheckpoints(grpc::ServerContext* context,
                                                const v1::ListCheckpointsRequest* request,
                                                v1::ListCheckpointsResponse* response) {
  const auto caller = access_->Check(*context, "ListCheckpoints", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto ticket = admission_->Enter(CallKind::kQuery, context->peer());
  if (!ticket.ok()) return ToGrpc(ticket.status());
  auto checkpoints = coordinator_->checkpoints().List(request->parent());
  if (!checkpoints.ok()) return ToGrpc(checkpoints.status());
  response->mutable_checkpoints()->Assign(checkpoints->begin(), checkpoints->end());
  return grpc::Status::OK;
}

grpc::Status CheckpointService::GetCheckpoint(grpc::ServerContext* context,
                                              const v1::GetCheckpointRequest* request,
                                              v1::Checkpoint* response) {
  const auto caller = access_->Check(*context, "GetCheckpoint", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  auto checkpoint = coordinator_->checkpoints().Get(request->name());
  if (!checkpoint.ok()) return ToGrpc(checkpoint.status());
  *response = *std::move(checkpoint);
  return grpc::Status::OK;
}

grpc::Status CheckpointService::SaveCheckpoint(grpc::ServerContext* context,
                                               const v1::SaveCheckpointRequest* request,
                                               v1::Checkpoint* response) {
  const auto caller = access_->Check(*context, "SaveCheckpoint", Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto ticket = admission_->Enter(CallKind::kSave, context->peer());
  const auto asked = ticket.ok() ? coordinator_->checkpoints().Request(request->job())
                                 : absl::StatusOr<Job::CheckpointRequest>(ticket.status());
  access_->Audit(*caller, "SaveCheckpoint", request->job(), asked.status());
  if (!asked.ok()) return ToGrpc(asked.status());
  while (!context->IsCancelled()) {
    auto checkpoint = coordinator_->checkpoints().Await(request->job(), *asked, kCallerCheck);
    if (!checkpoint.ok()) return ToGrpc(checkpoint.status());
    if (!checkpoint->has_value()) continue;
    *response = **std::move(checkpoint);
    return grpc::Status::OK;
  }
  return ToGrpc(CallerGone());
}

grpc::Status CheckpointService::DeleteCheckpoint(grpc::ServerContext* context,
                                                 const v1::DeleteCheckpointRequest* request,
                                                 google::protobuf::Empty*) {
  const auto caller = access_->Check(*context, "DeleteCheckpoint", Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const absl::Status deleted = coordinator_->checkpoints().Delete(request->name());
  access_->Audit(*caller, "DeleteCheckpoint", request->name(), deleted);
  return ToGrpc(deleted);
}

grpc::Status CheckpointService::ReadCheckpoint(
    grpc::ServerContext* context, const v1::ReadCheckpointRequest* request,
    grpc::ServerWriter<v1::ReadCheckpointResponse>* writer) {
  const auto caller = access_->Check(*context, "ReadCheckpoint", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto ticket = admission_->Enter(CallKind::kDownload, context->peer());
  if (!ticket.ok()) return ToGrpc(ticket.status());
  const auto checkpoint = coordinator_->checkpoints().Get(request->name());
  if (!checkpoint.ok()) return ToGrpc(checkpoint.status());
  auto files = CheckpointFiles::Open(*checkpoint, *request);
  if (!files.ok()) return ToGrpc(files.status());
  CallWatch::Guard guard(watch_, watch_->stall_max(), [context] { context->TryCancel(); });
  const absl::Status read = SendAll(*files, *writer, guard, watch_->stall_max());
  coordinator_->checkpoints().NoteRead(read);
  return ToGrpc(read);
}

}  // namespace muster
