// A fake coordinator that only reads and writes shards, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/member.grpc.pb.h"

namespace muster {

// Thread-safe.
class FakeMemberService : public v1::MemberService::Service {
 public:
  // One finished WriteShard or WriteShardDirect stream.
  struct Written {
    v1::WriteShardHeader header;
    std::vector<v1::ShardSlice> slices;
    std::vector<v1::WrittenSlice> written;
  };

  FakeMemberService();
  ~FakeMemberService() override;

  const std::string& address() const { return address_; }

  // Makes the next calls fail with these statuses, each after one message was read or written.
  void FailNext(std::vector<grpc::Status> statuses) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the next WriteShard read everything and never answer.
  void StallNextWrite() ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the answer of WriteShardDirect to the header. Without a layout it refuses with
  // "DIRECT_OFF".
  void SetLayout(std::vector<v1::WriteShardDirectResponse> layout) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the slices that ReadShard sends.
  void SetSlices(std::vector<v1::ShardSlice> slices) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits up to 20 s until `count` streams were written; the process dies otherwise.
  std::vector<Written> AwaitWritten(size_t count) ABSL_LOCKS_EXCLUDED(mu_);
  int calls() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  grpc::Status WriteShard(grpc::ServerContext* context,
                          grpc::ServerReader<v1::WriteShardRequest>* reader,
                          v1::WriteShardResponse* response) override;
  grpc::Status WriteShardDirect(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::WriteShardDirectResponse, v1::WriteShardDirectRequest>* stream)
      override;
  grpc::Status ReadShard(grpc::ServerContext* context, const v1::ReadShardRequest* request,
                         grpc::ServerWriter<v1::ShardSlice>* writer) override;
  grpc::Status TakeFault() ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<grpc::Status> faults_ ABSL_GUARDED_BY(mu_);
  bool stalls_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<v1::WriteShardDirectResponse> layout_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::ShardSlice> slices_ ABSL_GUARDED_BY(mu_);
  std::vector<Written> written_ ABSL_GUARDED_BY(mu_);
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace muster
