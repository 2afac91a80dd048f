// CheckpointService over the core.
#pragma once

#include "proto/muster/v1/checkpoint.grpc.pb.h"
#include "services/coordinator/api/call_gate.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// Calls block gRPC's threads for the disk and for checkpoints, one thread for each open call.
// `coordinator` must outlive the service.
class CheckpointService final : public v1::CheckpointService::Service {
 public:
  CheckpointService(Coordinator* coordinator, const CallGate& gate)
      : coordinator_(coordinator), gate_(gate) {}

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
  const CallGate gate_;
};

}  // namespace muster
