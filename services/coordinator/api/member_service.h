// MemberService over the core: one stream per member, and the shards of checkpoints.
#pragma once

#include "proto/muster/v1/member.grpc.pb.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/common/admission.h"
#include "services/coordinator/common/call_watch.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// Attach is asynchronous, so that thousands of members do not need a thread each. Shard calls block
// gRPC's threads for the disk and for checkpoints, one thread for each open call. Every method
// checks Permission::kMember first.
class MemberService final
    : public v1::MemberService::WithRawCallbackMethod_Attach<v1::MemberService::Service> {
 public:
  // The arguments must outlive the service and its server.
  MemberService(Coordinator* coordinator, Admission* admission, const Access* access,
                CallWatch* watch)
      : coordinator_(coordinator), admission_(admission), access_(access), watch_(watch) {}

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
  Admission* const admission_;
  const Access* const access_;
  CallWatch* const watch_;
};

}  // namespace muster
