// FleetService over the core.
#pragma once

#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// All methods are asynchronous: a call that waits for a member's log holds no thread. `coordinator`
// must outlive the service and its server.
class FleetService final : public v1::FleetService::CallbackService {
 public:
  // Both arguments must outlive the service.
  FleetService(Coordinator* coordinator, const Access* access)
      : coordinator_(coordinator), access_(access) {}

  grpc::ServerUnaryReactor* DrainMember(grpc::CallbackServerContext* context,
                                        const v1::DrainMemberRequest* request,
                                        v1::DrainMemberResponse* response) override;
  grpc::ServerUnaryReactor* ListMembers(grpc::CallbackServerContext* context,
                                        const v1::ListMembersRequest* request,
                                        v1::ListMembersResponse* response) override;
  grpc::ServerUnaryReactor* ReadMemberLog(grpc::CallbackServerContext* context,
                                          const v1::ReadMemberLogRequest* request,
                                          v1::ReadMemberLogResponse* response) override;

 private:
  Coordinator* const coordinator_;
  const Access* const access_;
};

}  // namespace muster
