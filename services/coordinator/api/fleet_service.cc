#include "services/coordinator/api/fleet_service.h"

#include <utility>

#include "lib/status/grpc_status.h"
#include "services/coordinator/common/late_call.h"

namespace muster {

grpc::ServerUnaryReactor* FleetService::DrainMember(grpc::CallbackServerContext* context,
                                                    const v1::DrainMemberRequest* request,
                                                    v1::DrainMemberResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto caller = access_->Check(*context, "DrainMember", Permission::kAdmin);
  absl::Status drained = caller.status();
  if (caller.ok()) {
    drained = coordinator_->members().Drain(request->name());
    access_->Audit(*caller, "DrainMember", request->name(), drained);
  }
  reactor->Finish(ToGrpc(drained));
  return reactor;
}

grpc::ServerUnaryReactor* FleetService::ListMembers(grpc::CallbackServerContext* context,
                                                    const v1::ListMembersRequest*,
                                                    v1::ListMembersResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto caller = access_->Check(*context, "ListMembers", Permission::kRead);
  if (caller.ok()) *response = coordinator_->ListMembers();
  reactor->Finish(ToGrpc(caller.status()));
  return reactor;
}

grpc::ServerUnaryReactor* FleetService::ReadMemberLog(grpc::CallbackServerContext* context,
                                                      const v1::ReadMemberLogRequest* request,
                                                      v1::ReadMemberLogResponse* response) {
  auto* const call = new LateCall<v1::ReadMemberLogResponse>(response);
  const auto reply = call->reply();
  const auto caller = access_->Check(*context, "ReadMemberLog", Permission::kRead);
  if (caller.ok()) {
    coordinator_->ReadMemberLog(*request, [reply](auto answer) { reply->Send(std::move(answer)); });
  } else {
    reply->Send(caller.status());
  }
  return call;
}

}  // namespace muster
