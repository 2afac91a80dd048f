// Clients that nobody asked in call the coordinator as fast as they can, some by hand-made HTTP/2:
// it stays small and keeps its member.
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/daemon.h"
#include "lib/fleet/fleet_client.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/coordinator_process.h"

namespace muster {
namespace {

// Without the door in front of gRPC it has twice as much within five seconds.
constexpr int64_t kResidentKilobytesMax = 1 << 20;
constexpr int64_t kThreadsMax = limits::kServerThreadsMax + 64;  // calls that block, and the rest
constexpr int kClientsOfEachKind = 4;

absl::Duration Siege() {
  absl::Duration siege = absl::Seconds(12);
  if (const char* wanted = std::getenv("HOSTILE_TIME")) {
    EXPECT_TRUE(absl::ParseDuration(wanted, &siege)) << "HOSTILE_TIME=" << wanted;
  }
  return siege;
}

class Member : public FleetMember {
 public:
  std::vector<v1::JobReport> Report() override { return {}; }
  void Handle(const v1::Directive&) override {}
  void CoordinatorLost() override { ADD_FAILURE() << "the coordinator is gone"; }
};

// One connection after the other, until it is stopped.
class HostileClient {
 public:
  HostileClient(const std::string& address, int kind)
      : address_(address), kind_(kind), thread_([this] { Run(); }) {}
  ~HostileClient() {
    stopping_ = true;
    thread_.join();
  }
  static constexpr int kKinds = 4;

  int64_t calls() const { return calls_; }

 private:
  static constexpr int kCallsAtOnce = 64;

  void Run() {
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);  // the test itself comes first
    while (!stopping_) {
      switch (kind_) {
        case 0:
          CallByHand("/muster.v1.FleetService/Attach", /*reset=*/true);
          break;
        case 1:  // acknowledges no settings, and reads nothing
          CallByHand("/muster.v1.CheckpointService/WriteShard", /*reset=*/false);
          break;
        case 2:
          OpenAndCancel({"/muster.v1.FleetService/Attach", "/muster.v1.JobService/WatchJob"});
          break;
        case 3:
          OpenAndCancel({"/muster.v1.CheckpointService/WriteShard",
                         "/muster.v1.CheckpointService/ReadShard",
                         "/muster.v1.JobService/CreateJob"});
          break;
      }
    }
  }

  static void AddFrame(int type, int flags, uint32_t stream, const std::string& payload,
                       std::string& bytes) {
    bytes += {0, 0, static_cast<char>(payload.size()), static_cast<char>(type),
              static_cast<char>(flags)};
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(stream >> shift));
    }
    bytes += payload;
  }
  // HPACK, by indices of its static table where there is one.
  static std::string Headers(const std::string& path) {
    auto text = [](const std::string& value) {
      return absl::StrCat(std::string(1, static_cast<char>(value.size())), value);
    };
    return absl::StrCat("\x83\x86", "\x04", text(path), "\x01", text("x"), std::string(1, 0),
                        text("te"), text("trailers"), "\x0f\x10", text("application/grpc"));
  }
  void CallByHand(const std::string& path, bool reset) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address_.substr(address_.rfind(':') + 1), &port)) << address_;
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int connection = socket(AF_INET, SOCK_STREAM, 0);
    const timeval patience = {.tv_usec = 200'000};
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    const std::string headers = Headers(path);
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    AddFrame(4, 0, 0, "", bytes);
    size_t sent = 0;
    uint32_t stream = 1;
    if (connect(connection, reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) stopping_ = true;
    while (!stopping_) {
      if (sent == bytes.size()) {
        bytes.clear();
        sent = 0;
        for (int i = 0; i < kCallsAtOnce; ++i, stream += 2, ++calls_) {
          AddFrame(1, 4, stream, headers, bytes);
          if (reset) AddFrame(3, 0, stream, std::string("\0\0\0\x08", 4), bytes);
        }
      }
      const ssize_t some = send(connection, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (some < 0 && errno != EAGAIN && errno != EINTR) break;
      sent += static_cast<size_t>(std::max<ssize_t>(some, 0));
    }
    close(connection);
  }

  void OpenAndCancel(const std::vector<std::string>& methods) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    grpc::GenericStub stub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
    grpc::CompletionQueue queue;
    struct Call {
      grpc::ClientContext context;
      std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
      grpc::Status status;
    };
    void* tag = nullptr;
    bool ok = false;
    while (!stopping_) {
      std::deque<Call> calls(kCallsAtOnce);
      for (Call& call : calls) {
        call.stream = stub.PrepareCall(
            &call.context, methods[static_cast<size_t>(calls_++) % methods.size()], &queue);
        call.stream->StartCall(nullptr);
      }
      const auto soon = std::chrono::system_clock::now() + std::chrono::milliseconds(20);
      int pending = kCallsAtOnce;
      while (pending > 0 && queue.AsyncNext(&tag, &ok, soon) == grpc::CompletionQueue::GOT_EVENT) {
        --pending;
      }
      for (Call& call : calls) {
        call.context.TryCancel();
        call.stream->Finish(&call.status, nullptr);
        ++pending;
      }
      for (; pending > 0; --pending) queue.Next(&tag, &ok);
    }
  }

  const std::string address_;
  const int kind_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> calls_ = 0;
  std::thread thread_;  // last: it uses the others
};

TEST(HostileCallsTest, TheCoordinatorStaysSmallAndKeepsItsMember) {
  const CoordinatorProcess coordinator;
  Member member;
  FleetClient::Options options{.coordinator = coordinator.address(),
                               .hello = Introduce(v1::WORKER, "worker-0")};
  const FleetClient client(std::move(options), &member);
  const auto fleet = v1::FleetService::NewStub(DialCoordinator(coordinator.address()));
  auto list = [&] {
    v1::ListMembersResponse members;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::Status status = fleet->ListMembers(&context, {}, &members);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return members;
  };
  v1::ListMembersResponse before;
  while (before.members_size() == 0) before = list();

  std::vector<std::unique_ptr<HostileClient>> clients;
  for (int i = 0; i < kClientsOfEachKind * HostileClient::kKinds; ++i) {
    clients.push_back(
        std::make_unique<HostileClient>(coordinator.address(), i % HostileClient::kKinds));
  }
  int64_t resident_most = 0, threads_most = 0;
  const absl::Time end = absl::Now() + Siege();
  // No longer than it takes to fail.
  while (absl::Now() < end && resident_most < kResidentKilobytesMax) {
    absl::Notification never;
    never.WaitForNotificationWithTimeout(absl::Milliseconds(50));
    resident_most = std::max(resident_most, coordinator.Status("VmRSS:"));
    threads_most = std::max(threads_most, coordinator.Status("Threads:"));
  }
  const v1::ListMembersResponse under_siege = list();
  int64_t calls = 0;
  for (const auto& hostile : clients) {
    EXPECT_GT(hostile->calls(), 0);
    calls += hostile->calls();
  }
  clients.clear();

  EXPECT_LT(resident_most, kResidentKilobytesMax);
  EXPECT_LT(threads_most, kThreadsMax);
  for (const v1::ListMembersResponse& members : {under_siege, list()}) {
    ASSERT_EQ(members.members_size(), 1);
    EXPECT_EQ(absl::FormatTime(absl::FromUnixSeconds(members.members(0).attach_time().seconds())),
              absl::FormatTime(absl::FromUnixSeconds(before.members(0).attach_time().seconds())))
        << "it was lost and came back";
  }
  printf("%ld calls; the coordinator had at most %ld KiB and %ld threads\n",
         static_cast<long>(calls), static_cast<long>(resident_most),
         static_cast<long>(threads_most));
}

}  // namespace
}  // namespace muster
