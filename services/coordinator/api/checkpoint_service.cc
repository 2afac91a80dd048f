#include "services/coordinator/api/checkpoint_service.h"

#include <utility>

#include "lib/status/grpc_status.h"
#include "services/coordinator/api/watched_stream.h"
#include "services/coordinator/checkpoints/checkpoint_files.h"

namespace muster {

grpc::Status CheckpointService::ListCheckpoints(grpc::ServerContext* context,
                                                const v1::ListCheckpointsRequest* request,
                                                v1::ListCheckpointsResponse* response) {
  const auto call = gate_.Admit(*context, "ListCheckpoints", Permission::kRead, CallKind::kQuery);
  if (!call.ok()) return ToGrpc(call.status());
  auto checkpoints = coordinator_->checkpoints().List(request->parent());
  if (!checkpoints.ok()) return ToGrpc(checkpoints.status());
  response->mutable_checkpoints()->Assign(checkpoints->begin(), checkpoints->end());
  return grpc::Status::OK;
}

grpc::Status CheckpointService::GetCheckpoint(grpc::ServerContext* context,
                                              const v1::GetCheckpointRequest* request,
                                              v1::Checkpoint* response) {
  const auto caller = gate_.access->Check(*context, "GetCheckpoint", Permission::kRead);
  if (!caller.ok()) return ToGrpc(caller.status());
  return Answer(coordinator_->checkpoints().Get(request->name()), response);
}

grpc::Status CheckpointService::SaveCheckpoint(grpc::ServerContext* context,
                                               const v1::SaveCheckpointRequest* request,
                                               v1::Checkpoint* response) {
  const auto caller = gate_.access->Check(*context, "SaveCheckpoint", Permission::kSubmit);
  if (!caller.ok()) return ToGrpc(caller.status());
  const auto ticket = gate_.admission->Enter(CallKind::kSave, context->peer());
  const auto asked = ticket.ok() ? coordinator_->checkpoints().Request(request->job())
                                 : absl::StatusOr<Job::CheckpointRequest>(ticket.status());
  gate_.access->Audit(*caller, "SaveCheckpoint", request->job(), asked.status());
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
  return ToGrpc(gate_.Audited(*context, "DeleteCheckpoint", request->name(),
                              [&] { return coordinator_->checkpoints().Delete(request->name()); }));
}

grpc::Status CheckpointService::ReadCheckpoint(
    grpc::ServerContext* context, const v1::ReadCheckpointRequest* request,
    grpc::ServerWriter<v1::ReadCheckpointResponse>* writer) {
  const auto call = gate_.Admit(*context, "ReadCheckpoint", Permission::kRead, CallKind::kDownload);
  if (!call.ok()) return ToGrpc(call.status());
  const auto checkpoint = coordinator_->checkpoints().Get(request->name());
  if (!checkpoint.ok()) return ToGrpc(checkpoint.status());
  auto files = CheckpointFiles::Open(*checkpoint, *request);
  if (!files.ok()) return ToGrpc(files.status());
  CallWatch::Guard guard = gate_.Watch(context, gate_.watch->stall_max());
  const absl::Status read = SendAll(*files, *writer, guard, gate_.watch->stall_max());
  coordinator_->checkpoints().NoteRead(read);
  return ToGrpc(read);
}

}  // namespace muster
