// CheckpointService over the core.
#pragma once

#include "proto/muster/v1/checkpoint.grpc.pb.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/common/admission.h"
#include "services/coordinator/common/call_watch.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// Calls block gRPC's threads for the disk and for checkpoints, one thread for each open call.
// `coordinator` must outlive the service.
class CheckpointService final : public v1::CheckpointService::Service {
 public:
  // The arguments must outlive the service.
  CheckpointService(Coordinator* coordinator, Admission* admission, const Access* access,
                    CallWatch* watch)
      : coordinator_(coordinator), admission_(admission), access_(access), watch_(watch) {}

  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override;
  grpc::Status GetCheckpoint(grpc::ServerContext* context, const v1::GetCheckpointRequest* request,
                             v1::Checkpoint* response) override;
  grpc::Status SaveCheckpoint(grpc::ServerContext* context,
                              const v1::SaveCheckpointRequest* request,
                              v1::Checkpoint* response) override;
  grpc::Status DeleteCheckpoint(grpc::ServerContext* context,
                                const v1::DeleteCheckpointRequest* request,
                                google::protobuf::Empty* response) override;
  grpc::Status ReadCheckpoint(grpc::ServerContext* context,
                              const v1::ReadCheckpointRequest* request,
                              grpc::ServerWriter<v1::ReadCheckpointResponse>* writer) override;

 private:
  Coordinator* const coordinator_;
  Admission* const admission_;
  const Access* const access_;
  CallWatch* const watch_;
};

}  // namespace muster
