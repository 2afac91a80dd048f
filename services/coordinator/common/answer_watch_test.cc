#include "services/coordinator/common/answer_watch.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/fleet/log_ring.h"
#include "lib/listener/hostile_client.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"

namespace muster::answer_watch_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(20);

class Jobs final : public v1::JobService::Service {
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    response->set_security("plaintext");
    return grpc::Status::OK;
  }
};

class AnswerWatchTest : public ::testing::Test {
 protected:
  void Serve(absl::Duration patience, size_t most) {
    watch_ = std::make_unique<AnswerWatch>(
        AnswerWatch::Options{.name = [](const grpc::ServerContextBase&) { return "somebody"; },
                             .patience = patience,
                             .most = most,
                             .interval = absl::Milliseconds(10)});
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota;
    quota.SetMaxThreads(64);
    builder.SetResourceQuota(quota);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&jobs_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
        interceptors;
    interceptors.push_back(watch_->Interceptors());
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
  }
  ~AnswerWatchTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::string AwaitLine(absl::string_view part) const {
    const absl::Duration end = SteadyNow() + kPatience;
    std::string text;
    while (SteadyNow() < end && !absl::StrContains(text, part)) {
      absl::Notification never;
      never.WaitForNotificationWithTimeout(absl::Milliseconds(5));
      text = log_.Read(0, 1 << 20).text;
    }
    return text;
  }

  const LogRing log_{1 << 20};
  Jobs jobs_;
  std::unique_ptr<AnswerWatch> watch_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(AnswerWatchTest, CancelsACallWithAnUnreadAnswerAfterATime) {
  Serve(absl::Milliseconds(50), 100'000);
  const HostileClient client({.address = address(), .attacks = {Attack::kNoWindow}});

  EXPECT_THAT(AwaitLine(", the limit: "),
              HasSubstr("somebody has not read the answer of /muster.v1.JobService/GetServerInfo"));
}

TEST_F(AnswerWatchTest, CancelsTheOldestCallIfTooManyWait) {
  Serve(absl::InfiniteDuration(), 4);
  const HostileClient client({.address = address(), .attacks = {Attack::kNoWindow}});

  EXPECT_THAT(AwaitLine("too many others"), HasSubstr("somebody has not read"));
}

}  // namespace
}  // namespace muster::answer_watch_test
