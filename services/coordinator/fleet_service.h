// FleetService over the core: one stream per member.
#pragma once

#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/access.h"
#include "services/coordinator/admission.h"
#include "services/coordinator/call_watch.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// Asynchronous throughout: thousands of members need no thread each. Attach takes and gives bytes,
// so that the streams share a plan's. `coordinator` outlives the service and its server.
class FleetService final
    : public v1::FleetService::WithRawCallbackMethod_Attach<
          v1::FleetService::WithCallbackMethod_ListMembers<
              v1::FleetService::WithCallbackMethod_DrainMember<
                  v1::FleetService::WithCallbackMethod_ReadMemberLog<v1::FleetService::Service>>>> {
 public:
  // All outlive the service.
  FleetService(Coordinator* coordinator, Admission* admission, const Access* access,
               CallWatch* watch)
      : coordinator_(coordinator), admission_(admission), access_(access), watch_(watch) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Attach(
      grpc::CallbackServerContext* context) override;
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
  Admission* const admission_;
  const Access* const access_;
  CallWatch* const watch_;
};

}  // namespace muster
