// MemberService over the core: one stream per member, and the shards of checkpoints.
#pragma once

#include "proto/muster/v1/member.grpc.pb.h"
#include "services/coordinator/api/call_gate.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// Attach is asynchronous, so that thousands of members do not need a thread each. Shard calls block
// gRPC's threads for the disk and for checkpoints, one thread for each open call. Every method
// checks Permission::kMember first.
class MemberService final
    : public v1::MemberService::WithRawCallbackMethod_Attach<v1::MemberService::Service> {
 public:
  // The arguments must outlive the service and its server.
  MemberService(Coordinator* coordinator, const CallGate& gate)
      : coordinator_(coordinator), gate_(gate) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Attach(
      grpc::CallbackServerContext* context) override;
  grpc::Status WriteShard(grpc::ServerContext* context,
                          grpc::ServerReader<v1::WriteShardRequest>* reader,
                          v1::WriteShardResponse* response) override;
  grpc::Status WriteShardDirect(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::WriteShardDirectResponse, v1::WriteShardDirectRequest>* stream)
      override;
  grpc::Status ReadShard(grpc::ServerContext* context, const v1::ReadShardRequest* request,
                         grpc::ServerWriter<v1::ShardSlice>* writer) override;

 private:
  Coordinator* const coordinator_;
  const CallGate gate_;
};

}  // namespace muster
