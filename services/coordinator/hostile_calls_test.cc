// Hostile clients call the coordinator as fast as they can, some with hand-made HTTP/2. Its memory
// stays small and it keeps its member.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/daemon.h"
#include "lib/fleet/fleet_client.h"
#include "lib/limits/limits.h"
#include "lib/listener/hostile_client.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/testing/coordinator_process.h"

namespace muster::hostile_calls_test {
namespace {

// Limit of the coordinator's resident memory. gRPC without the listener uses twice as much within
// five seconds.
#if defined(__SANITIZE_ADDRESS__)  // the sanitizer keeps freed memory
constexpr int64_t kResidentKilobytesMax = 4 << 20;
#else
constexpr int64_t kResidentKilobytesMax = 1 << 20;
#endif
// Limit of the coordinator's threads: those of blocking calls, and all others.
constexpr int64_t kThreadsMax = limits::kServerThreadsMax + 64;
constexpr int kClientsOfEachKind = 4;

absl::Duration Siege() {
  absl::Duration siege = absl::Seconds(6);
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

std::unique_ptr<HostileClient> Attacker(const CoordinatorProcess& coordinator, Attack attack) {
  return std::make_unique<HostileClient>(
      HostileClient::Options{.address = coordinator.address(), .attacks = {attack}});
}

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
  for (int i = 0; i < kClientsOfEachKind; ++i) {
    for (const Attack attack : {Attack::kResetCalls, Attack::kDeafness, Attack::kCancelStreams,
                                Attack::kCancelCalls, Attack::kPings, Attack::kControlFrames}) {
      clients.push_back(Attacker(coordinator, attack));
    }
  }
  int64_t resident_most = 0, threads_most = 0;
  const absl::Time end = absl::Now() + Siege();
  // Stops as soon as the memory exceeds its limit.
  while (absl::Now() < end && resident_most < kResidentKilobytesMax) {
    absl::Notification never;
    never.WaitForNotificationWithTimeout(absl::Milliseconds(50));
    resident_most = std::max(resident_most, coordinator.Status("VmRSS:"));
    threads_most = std::max(threads_most, coordinator.Status("Threads:"));
  }
  const v1::ListMembersResponse under_siege = list();
  int64_t calls = 0;
  for (const auto& hostile : clients) {
    EXPECT_GT(hostile->strokes(), 0);
    calls += hostile->strokes();
  }
  clients.clear();

  EXPECT_LT(resident_most, kResidentKilobytesMax);
  EXPECT_LT(threads_most, kThreadsMax);
  for (const v1::ListMembersResponse& members : {under_siege, list()}) {
    ASSERT_EQ(members.members_size(), 1);
    EXPECT_EQ(absl::FormatTime(absl::FromUnixSeconds(members.members(0).attach_time().seconds())),
              absl::FormatTime(absl::FromUnixSeconds(before.members(0).attach_time().seconds())))
        << "the member was lost and came back";
  }
  printf("%ld calls; the coordinator had at most %ld KiB and %ld threads\n",
         static_cast<long>(calls), static_cast<long>(resident_most),
         static_cast<long>(threads_most));
}

// A call holds a thread until its answer is sent. Three seconds after their start, four clients may
// have one and a half times as many calls as there are threads.
TEST(HostileCallsTest, ClientsThatReadNoAnswersLeaveThreadsForOthers) {
  const CoordinatorProcess coordinator;
  const auto jobs = v1::JobService::NewStub(DialCoordinator(coordinator.address()));
  std::vector<std::unique_ptr<HostileClient>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(Attacker(coordinator, Attack::kNoWindow));

  int64_t threads_most = 0;
  const absl::Time end = absl::Now() + absl::Seconds(8);
  while (absl::Now() < end && !HasFailure()) {
    v1::ListJobsResponse list;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const grpc::Status status = jobs->ListJobs(&context, {}, &list);
    EXPECT_TRUE(status.ok()) << status.error_message();
    threads_most = std::max(threads_most, coordinator.Status("Threads:"));
    absl::Notification never;
    never.WaitForNotificationWithTimeout(absl::Milliseconds(50));
  }
  EXPECT_GT(threads_most, kThreadsMax / 4) << "the answers were sent, so nothing was tested";
  printf("the coordinator had at most %ld threads\n", static_cast<long>(threads_most));
}

}  // namespace
}  // namespace muster::hostile_calls_test
