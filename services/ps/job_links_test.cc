#include "services/ps/job_links.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/fake_peers.h"
#include "services/ps/installed_shard.h"
#include "services/ps/ps_metrics.h"

namespace muster::job_links_test {
namespace {

constexpr PeerId kA{1}, kB{2};

// Peers join and leave as the test says. Payloads to a peer stay under way until it leaves.
class IdleTransport : public Transport {
 public:
  void SetReceiver(MessageReceiver*) override {}
  std::string address() const override { return "idle"; }
  std::string name() const override { return "idle"; }
  void OpenSession(uint64_t, uint32_t generation, const SessionToken&) override {
    open = generation;
  }
  void CloseSession(uint64_t, uint32_t) override { open.reset(); }
  absl::StatusOr<PeerId> Connect(absl::string_view, const LinkCredentials&) override {
    return absl::UnimplementedError("nobody is connected to");
  }
  void Disconnect(PeerId peer) override {
    disconnected.push_back(peer);
    for (SendDone& done : std::exchange(sends[peer], {})) done(absl::CancelledError("left"));
  }
  void Send(PeerId peer, const WireHeader&, absl::Span<const std::byte>, SendDone done) override {
    EXPECT_EQ(std::count(disconnected.begin(), disconnected.end(), peer), 0);
    if (done) sends[peer].push_back(std::move(done));
  }
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte>) override {
    return std::make_unique<MemoryRegistration>();
  }
  int Progress() override { return 0; }
  void Wait(absl::Duration) override {}
  void Wake() override {}

  std::optional<uint32_t> open;  // generation of the open session
  std::vector<PeerId> disconnected;
  std::map<PeerId, std::vector<SendDone>> sends;
};

class JobLinksTest : public testing::Test {
 protected:
  std::unique_ptr<InstalledShard> Install(const v1::JobPlan& plan) {
    auto shard = *ParameterShard::Create(
        std::make_shared<v1::JobPlan>(plan), kFirstShard,
        *budget_.Reserve(ParameterShard::BytesNeeded(plan, kFirstShard), absl::ZeroDuration()));
    auto installed = std::make_unique<InstalledShard>(
        InstalledShard::Environment{&transport_, &ps_metrics_, &counts_}, std::move(shard),
        &listener_, &progress_, InstalledShard::Registrations(), &links_);
    links_.Open(installed.get());
    return installed;
  }

  // Joins as a worker of the first generation and says HELLO.
  JobLinks::Link& Join(PeerId peer, uint32_t rank) {
    EXPECT_EQ(links_.Join(peer, {.job = 7, .generation = 1, .index = rank}), RefusalReason::kNone);
    links_.Greet(*index_.at(peer), HelloOf(first_, rank));
    return *index_.at(peer);
  }

  static WireHeader HelloOf(const v1::JobPlan& plan, uint32_t rank) {
    return {.kind = MessageKind::kHello,
            .generation = plan.generation(),
            .job = plan.job_number(),
            .rank = rank};
  }

  // Begins to receive a push of that rank, and returns its place.
  static absl::Span<std::byte> BeginPush(InstalledShard& shard, int rank) {
    const auto placement = shard.shard().PlacePush(PushHeader(shard.plan(), 0, 0, rank));
    EXPECT_FALSE(placement.memory.empty());
    return placement.memory;
  }
  void EndPush(InstalledShard& shard, int rank, absl::Span<std::byte> memory) {
    std::memset(memory.data(), 0, memory.size());  // a sanitizer checks the access
    const WireHeader header = PushHeader(shard.plan(), 0, 0, rank);
    EXPECT_EQ(&links_.Placed(header), &shard);
    EXPECT_EQ(links_.Placed(header).shard().PushArrived(header, memory, {}), RefusalReason::kNone);
  }

  const v1::JobPlan first_ = MakeTestPlan({}), second_ = MakeTestPlan({.generation = 2});
  Metrics metrics_;
  PsMetrics ps_metrics_{metrics_};
  ShardCounts& counts_ = ps_metrics_.AddShardThread();
  MemoryBudget budget_{1 << 24};
  FakeListener listener_;
  ShardProgress progress_;
  IdleTransport transport_;
  JobLinks::Index index_;
  JobLinks links_{&transport_, &index_, 7, SessionToken()};
};

TEST_F(JobLinksTest, AnEmptySeatIsNamedWithItsJobAndMember) {
  const auto shard = Install(first_);
  absl::Status why;

  shard->SendTo(Rank(0), {}, {}, [&](const absl::Status& status) { why = status; });

  EXPECT_EQ(why,
            absl::UnavailableError(absl::StrCat(first_.job(), ": rank 0 on ",
                                                first_.workers(0).member(), " is not connected")));
}

TEST_F(JobLinksTest, PushUnderWayDuringTheChangeEndsInItsOwnGeneration) {
  auto first = Install(first_);
  JobLinks::Link& link = Join(kA, 0);
  const absl::Span<std::byte> memory = BeginPush(*first, 0);
  auto second = Install(second_);
  links_.Greet(link, HelloOf(second_, 1));
  EXPECT_TRUE(first->retired());
  EXPECT_FALSE(first->shard().idle());
  EndPush(*first, 0, memory);
  EXPECT_TRUE(first->shard().idle());
  EXPECT_EQ(second->PeerAt({LinkRole::kWorker, 1}), kA);
  EXPECT_TRUE(transport_.disconnected.empty());
}

TEST_F(JobLinksTest, RemovedPeerLeavesEarlierGenerationsAsWell) {
  auto first = Install(first_);
  JobLinks::Link& link = Join(kA, 0);
  BeginPush(*first, 0);
  auto second = Install(second_);
  links_.Greet(link, HelloOf(second_, 1));
  BeginPush(*second, 1);
  links_.Remove(link);
  EXPECT_TRUE(first->shard().idle());
  EXPECT_TRUE(second->shard().idle());
  EXPECT_EQ(second->PeerAt({LinkRole::kWorker, 1}), PeerId::kNone);
  EXPECT_EQ(transport_.disconnected, std::vector<PeerId>{kA});
  EXPECT_TRUE(links_.empty());
  EXPECT_TRUE(index_.empty());
}

TEST_F(JobLinksTest, PeerThatFollowedIsNotCutOffForTheLastGeneration) {
  auto first = Install(first_);
  JobLinks::Link& link = Join(kA, 0);
  Join(kB, 1);
  const absl::Span<std::byte> memory = BeginPush(*first, 0);
  BeginPush(*first, 1);
  auto second = Install(second_);
  links_.Greet(link, HelloOf(second_, 0));
  links_.CutOff(*first);
  EXPECT_EQ(transport_.disconnected, std::vector<PeerId>{kB});
  EXPECT_FALSE(first->shard().idle());
  EndPush(*first, 0, memory);
  EXPECT_TRUE(first->shard().idle());
  links_.CutOff(*second);
  EXPECT_EQ(transport_.disconnected, (std::vector<PeerId>{kB, kA}));
}

// The end of one answer begins the next one, but not to a peer that is being disconnected.
TEST_F(JobLinksTest, NothingIsSentToAPeerThatIsBeingDisconnected) {
  auto first = Install(first_);
  JobLinks::Link& link = Join(kA, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(first->shard().Fetch(FetchHeader(first_, 0, 0, 0)), RefusalReason::kNone);
  }
  ASSERT_EQ(transport_.sends[kA].size(), 1);
  links_.Remove(link);
  EXPECT_TRUE(first->shard().idle());
}

TEST_F(JobLinksTest, SessionBelongsToTheGenerationOpenedLast) {
  auto first = Install(first_);
  EXPECT_EQ(transport_.open, 1);
  auto second = Install(second_);
  EXPECT_EQ(transport_.open, 2);
  EXPECT_EQ(links_.Join(kA, {.job = 7, .generation = 1}), RefusalReason::kUnknownJob);
  EXPECT_EQ(links_.Join(kA, {.job = 7, .generation = 2, .index = 2}), RefusalReason::kWrongRank);
  links_.Release();
  EXPECT_EQ(links_.shard(), nullptr);
  EXPECT_EQ(links_.Join(kA, {.job = 7, .generation = 2}), RefusalReason::kNone);
  links_.Close();
  EXPECT_EQ(transport_.open, std::nullopt);
}

}  // namespace
}  // namespace muster::job_links_test
