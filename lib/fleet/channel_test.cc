#include "lib/fleet/channel.h"

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "lib/status/grpc_status.h"
#include "proto/muster/v1/member.grpc.pb.h"

namespace muster::channel_test {
namespace {

std::chrono::system_clock::time_point Patience() {
  return std::chrono::system_clock::now() + std::chrono::seconds(30);
}

// Answers each report with the address of the peer that sent it.
class Echo final : public v1::MemberService::Service {
 public:
  explicit Echo(const ConnectionAge& age) {
    grpc::ServerBuilder builder;
    ConfigureServer(builder, age);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Echo() override { server_->Shutdown(std::chrono::system_clock::now()); }

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::Directive, v1::MemberReport>* stream) override {
    v1::Directive answer;
    answer.set_job(context->peer());
    for (v1::MemberReport report; stream->Read(&report);) stream->Write(answer);
    return grpc::Status::OK;
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class Caller {
 public:
  explicit Caller(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::MemberService::NewStub(channel)) {
    context_.set_deadline(Patience());
    stream_ = stub_->Attach(&context_);
  }
  // Returns the connection on which the server receives the calls, or "" if the stream has ended.
  std::string Connection() {
    v1::Directive answer;
    return stream_->Write({}) && stream_->Read(&answer) ? answer.job() : "";
  }
  absl::Status End() { return FromGrpc(stream_->Finish()); }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::MemberService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MemberReport, v1::Directive>> stream_;
};

TEST(ConnectionAgeTest, AnOldConnectionTakesNoNewCallsAndKeepsItsStreams) {
  const Echo server({.most = absl::Milliseconds(100), .grace = absl::Hours(1)});
  const auto channel = DialCoordinator(server.address());
  Caller stream(channel);
  const std::string old = stream.Connection();
  ASSERT_NE(old, "");

  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, Patience()));

  Caller later(channel);
  const std::string next = later.Connection();
  EXPECT_NE(next, "");
  EXPECT_NE(next, old);
  EXPECT_EQ(stream.Connection(), old);
}

TEST(ConnectionAgeTest, AfterTheGraceStreamsEndAndCanBeReopened) {
  const Echo server({.most = absl::Milliseconds(50), .grace = absl::Milliseconds(50)});
  const auto channel = DialCoordinator(server.address());
  for (int i = 0; i < 3; ++i) {
    Caller stream(channel);
    ASSERT_NE(stream.Connection(), "");
    while (!stream.Connection().empty()) {
    }
    const absl::Status end = stream.End();
    EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  }
}

TEST(ConnectionAgeTest, WithoutALimitAConnectionStays) {
  const Echo server({});
  const auto channel = DialCoordinator(server.address());
  Caller stream(channel);
  ASSERT_NE(stream.Connection(), "");

  const auto soon = std::chrono::system_clock::now() + std::chrono::milliseconds(300);
  EXPECT_FALSE(channel->WaitForStateChange(GRPC_CHANNEL_READY, soon));
}

}  // namespace
}  // namespace muster::channel_test
