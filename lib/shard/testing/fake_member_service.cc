#include "lib/shard/testing/fake_member_service.h"

#include <glog/logging.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/channel.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"

namespace muster {

FakeMemberService::FakeMemberService() {
  int port = 0;
  grpc::ServerBuilder builder;
  ConfigureServer(builder);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
}

FakeMemberService::~FakeMemberService() { server_->Shutdown(std::chrono::system_clock::now()); }

void FakeMemberService::FailNext(std::vector<grpc::Status> statuses) {
  absl::MutexLock lock(&mu_);
  faults_ = std::move(statuses);
}

void FakeMemberService::StallNextWrite() {
  absl::MutexLock lock(&mu_);
  stalls_ = true;
}

void FakeMemberService::SetSlices(std::vector<v1::ShardSlice> slices) {
  absl::MutexLock lock(&mu_);
  slices_ = std::move(slices);
}

std::vector<FakeMemberService::Written> FakeMemberService::AwaitWritten(size_t count) {
  absl::MutexLock lock(&mu_);
  auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return written_.size() >= count; };
  CHECK(AwaitFor(&mu_, absl::Condition(&enough), absl::Seconds(20)))
      << written_.size() << " of " << count << " streams were written within 20 s";
  return written_;
}

int FakeMemberService::calls() const {
  absl::MutexLock lock(&mu_);
  return calls_;
}

grpc::Status FakeMemberService::TakeFault() {
  absl::MutexLock lock(&mu_);
  ++calls_;
  if (faults_.empty()) return grpc::Status::OK;
  const grpc::Status fault = faults_.front();
  faults_.erase(faults_.begin());
  return fault;
}

grpc::Status FakeMemberService::WriteShard(grpc::ServerContext* context,
                                           grpc::ServerReader<v1::WriteShardRequest>* reader,
                                           v1::WriteShardResponse*) {
  const grpc::Status fault = TakeFault();
  Written written;
  for (v1::WriteShardRequest request; reader->Read(&request);) {
    if (!fault.ok()) return fault;
    if (request.has_header()) written.header = request.header();
    if (request.has_slice()) written.slices.push_back(request.slice());
  }
  absl::MutexLock lock(&mu_);
  if (std::exchange(stalls_, false)) {
    // a cancelled call signals no mutex, so poll
    const auto ended = [context] { return context->IsCancelled(); };
    while (!AwaitFor(&mu_, absl::Condition(&ended), absl::Milliseconds(1))) {
    }
  }
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  written_.push_back(std::move(written));
  return grpc::Status::OK;
}

void FakeMemberService::SetLayout(std::vector<v1::WriteShardDirectResponse> layout) {
  absl::MutexLock lock(&mu_);
  layout_ = std::move(layout);
}

grpc::Status FakeMemberService::WriteShardDirect(
    grpc::ServerContext*,
    grpc::ServerReaderWriter<v1::WriteShardDirectResponse, v1::WriteShardDirectRequest>* stream) {
  const grpc::Status fault = TakeFault();
  std::vector<v1::WriteShardDirectResponse> layout;
  {
    absl::MutexLock lock(&mu_);
    layout = layout_;
  }
  Written written;
  v1::WriteShardDirectRequest request;
  if (!stream->Read(&request)) return grpc::Status::CANCELLED;
  written.header = request.header();
  if (layout.empty()) {
    return ToGrpc(WithReason(absl::FailedPreconditionError("direct writes are off: send the shard"),
                             "DIRECT_OFF"));
  }
  for (const v1::WriteShardDirectResponse& message : layout) stream->Write(message);
  if (!fault.ok()) return fault;
  while (stream->Read(&request)) {
    if (request.has_slice()) written.written.push_back(request.slice());
    if (!request.has_closed()) continue;
    absl::MutexLock lock(&mu_);
    written_.push_back(std::move(written));
    return grpc::Status::OK;
  }
  return grpc::Status::CANCELLED;
}

grpc::Status FakeMemberService::ReadShard(grpc::ServerContext*, const v1::ReadShardRequest*,
                                          grpc::ServerWriter<v1::ShardSlice>* writer) {
  const grpc::Status fault = TakeFault();
  std::vector<v1::ShardSlice> slices;
  {
    absl::MutexLock lock(&mu_);
    slices = slices_;
  }
  for (const v1::ShardSlice& slice : slices) {
    writer->Write(slice);
    if (!fault.ok()) break;
  }
  return fault;
}

}  // namespace muster
