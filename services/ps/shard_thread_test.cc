#include "services/ps/shard_thread.h"

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/ps/fake_peers.h"

namespace muster::shard_thread_test {
namespace {

using ::testing::HasSubstr;

class ShardThreadTest : public testing::Test {
 protected:
  ShardThreadTest() {
    auto started = ShardThread::Start(
        [this]() -> absl::StatusOr<std::unique_ptr<Transport>> { return network_.MakeTransport(); },
        &ps_metrics_);
    thread_ = *std::move(started);
  }

  void Install(const v1::JobPlan& plan) {
    auto shard = *ParameterShard::Create(
        std::make_shared<v1::JobPlan>(plan), kFirstShard,
        *budget_.Reserve(ParameterShard::BytesNeeded(plan, kFirstShard), absl::ZeroDuration()));
    for (const LocalChunk chunk : shard->chunks()) shard->Initialize(chunk);
    thread_->Install(std::move(shard), &listener_, &progress_);
    listener_.AwaitInstalled(++installed_);
  }

  std::unique_ptr<FakeWorker> Worker(const v1::JobPlan& plan, int rank) {
    return std::make_unique<FakeWorker>(&network_, plan, rank);
  }

  std::unique_ptr<FakeWorker> GreetedWorker(const v1::JobPlan& plan, int rank) {
    auto worker = Worker(plan, rank);
    worker->Greet(thread_->address());
    return worker;
  }

  double Refused(RefusalReason reason) { return ps_metrics_.refused(reason).Value(); }
  void AwaitRefused(RefusalReason reason, double count) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (Refused(reason) < count && absl::Now() < deadline) std::this_thread::yield();
    EXPECT_EQ(Refused(reason), count);
  }

  // A fetch is answered after everything that the worker sent before it was handled.
  void ExpectAlive(FakeWorker& worker, const v1::JobPlan& plan, int rank) {
    worker.Send(FetchHeader(plan, plan.first_step(), 0, rank));
    EXPECT_EQ(worker.Receive().header.kind, MessageKind::kParams);
  }

  Metrics metrics_;
  PsMetrics ps_metrics_{metrics_};
  MemoryBudget budget_{1 << 24};
  InProcessNetwork network_;
  FakeListener listener_;
  ShardProgress progress_;
  int installed_ = 0;
  std::unique_ptr<ShardThread> thread_;  // last: destroyed first
};

TEST_F(ShardThreadTest, TrainsWithTwoWorkers) {
  const v1::JobPlan plan = MakeTestPlan({.parameters = {300, 5}, .chunk_bytes = 512});
  Install(plan);
  auto worker0 = GreetedWorker(plan, 0);
  auto worker1 = GreetedWorker(plan, 1);
  worker0->Send(FetchHeader(plan, 0, 2, 0));
  const Values initial = worker0->Receive().payload;
  ASSERT_EQ(initial.size(), plan.chunks(2).elements());
  thread_->StartJob(plan.job_number(), plan.generation(), 50);
  for (int64_t step = 0; step < 50; ++step) {
    for (int chunk = 0; chunk < plan.chunks_size(); ++chunk) {
      worker1->Push(step, chunk, 0.5f);
      worker0->Push(step, chunk, 0.5f);
    }
    for (FakeWorker* worker : {worker0.get(), worker1.get()}) {
      for (int chunk = 0; chunk < plan.chunks_size(); ++chunk) {
        const FakeWorker::Message answer = worker->Receive();
        ASSERT_EQ(answer.header.kind, MessageKind::kParams);
        ASSERT_EQ(answer.header.step, step + 1);
        EXPECT_EQ(answer.header.scalar, answer.payload.size());
        if (answer.header.chunk == 2) {
          EXPECT_FLOAT_EQ(answer.payload[1], initial[1] - 0.5f * static_cast<float>(step + 1));
        }
      }
    }
  }
  EXPECT_EQ(progress_.lowest_version, 50);
  EXPECT_EQ(ps_metrics_.pushes(), 50 * 2 * plan.chunks_size());
  EXPECT_EQ(ps_metrics_.duplicate_pushes.Value(), 0);
}

TEST_F(ShardThreadTest, RepeatedPushIsAnsweredWithTheAppliedValue) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  thread_->StartJob(plan.job_number(), plan.generation(), 50);
  auto worker = GreetedWorker(plan, 0);
  worker->Push(0, 0, 1);
  const Values first = worker->Receive().payload;
  worker->Push(0, 0, 1);
  const FakeWorker::Message again = worker->Receive();
  EXPECT_EQ(again.header.kind, MessageKind::kParams);
  EXPECT_EQ(again.header.step, 1);
  EXPECT_EQ(again.payload, first);
  EXPECT_EQ(ps_metrics_.duplicate_pushes.Value(), 1);
}

TEST_F(ShardThreadTest, DuplicatedMessagesChangeNothing) {
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  thread_->StartJob(plan.job_number(), plan.generation(), 50);
  auto worker0 = GreetedWorker(plan, 0);
  auto worker1 = GreetedWorker(plan, 1);
  network_.SetFault([](const WireHeader& header) {
    return header.kind == MessageKind::kPush ? InProcessNetwork::Fate::kDuplicate
                                             : InProcessNetwork::Fate::kDeliver;
  });
  for (int64_t step = 0; step < 20; ++step) {
    worker0->Push(step, 0, 1);
    worker1->Push(step, 0, 1);
    for (FakeWorker* worker : {worker0.get(), worker1.get()}) {
      while (worker->Receive().header.step != step + 1) continue;
    }
  }
  EXPECT_EQ(progress_.lowest_version, 20);
  EXPECT_EQ(ps_metrics_.pushes(), 40);
}

TEST_F(ShardThreadTest, PeerWithoutTheTokenIsNotAdmitted) {
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  auto unauthenticated_peer = Worker(plan, 0);
  LinkCredentials credentials = unauthenticated_peer->Credentials();
  credentials.token = SessionToken::Random();
  unauthenticated_peer->Connect(thread_->address(), credentials);
  EXPECT_TRUE(absl::IsPermissionDenied(unauthenticated_peer->AwaitLost()));
  unauthenticated_peer->Hello();
  unauthenticated_peer->Push(0, 0, 1);
  auto worker = GreetedWorker(plan, 1);
  ExpectAlive(*worker, plan, 1);
  EXPECT_EQ(ps_metrics_.pushes(), 0);
  EXPECT_EQ(unauthenticated_peer->Receive(absl::ZeroDuration()).header.job, 0);
}

TEST_F(ShardThreadTest, UnknownMemberOfTheJobIsRefused) {
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  auto unauthenticated_peer = Worker(plan, 0);
  for (const LinkRole role : {LinkRole::kWorker, LinkRole::kShard}) {
    LinkCredentials credentials = unauthenticated_peer->Credentials();
    credentials.self.role = role;
    credentials.self.index = 2;
    unauthenticated_peer->Connect(thread_->address(), credentials);
    EXPECT_FALSE(unauthenticated_peer->AwaitLost().ok());
  }
  EXPECT_EQ(Refused(RefusalReason::kWrongRank), 2);
  auto worker = GreetedWorker(plan, 1);
  ExpectAlive(*worker, plan, 1);
}

TEST_F(ShardThreadTest, MessagesBeforeTheHelloAreRefused) {
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  auto worker = Worker(plan, 0);
  worker->Connect(thread_->address());
  worker->Push(0, 0, 1);
  worker->Send(FetchHeader(plan, 0, 0, 0));
  worker->Hello();
  EXPECT_EQ(worker->Receive().header.kind, MessageKind::kHello);
  EXPECT_EQ(Refused(RefusalReason::kNotGreeted), 2);
  EXPECT_EQ(ps_metrics_.pushes(), 0);
  ExpectAlive(*worker, plan, 0);
}

TEST_F(ShardThreadTest, PeerThatImpersonatesAnotherIsCutOffAndMayComeBack) {
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  thread_->StartJob(plan.job_number(), plan.generation(), 50);
  auto worker = GreetedWorker(plan, 0);
  auto honest = GreetedWorker(plan, 1);
  v1::JobPlan other_job = plan;
  other_job.set_job_number(99);
  WireHeader params = FetchHeader(plan, 0, 0, 0);
  for (const MessageKind kind :
       {MessageKind::kParams, MessageKind::kRefused, MessageKind::kSquares, MessageKind::kVerdict,
        MessageKind::kArrived, MessageKind::kClosed, MessageKind::kNorms, MessageKind::kTrust}) {
    params.kind = kind;
    worker->Send(params, "12345678");
    EXPECT_FALSE(worker->AwaitLost().ok()) << static_cast<int>(kind);
    worker->Greet(thread_->address());
  }
  for (const WireHeader& push :
       {PushHeader(plan, 0, 0, /*rank=*/1), PushHeader(other_job, 0, 0, 0)}) {
    worker->Send(push, std::string(28, 'x'));
    EXPECT_FALSE(worker->AwaitLost().ok());
    worker->Greet(thread_->address());
  }
  EXPECT_EQ(Refused(RefusalReason::kBadHeader), 10);
  worker->Push(0, 0, 1);
  honest->Push(0, 0, 1);
  EXPECT_EQ(worker->Receive().header.step, 1);
  EXPECT_EQ(honest->Receive().header.step, 1);
  EXPECT_TRUE(honest->lost().ok());
}

TEST_F(ShardThreadTest, LostPushMayComeAgainAtOnce) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  thread_->StartJob(plan.job_number(), plan.generation(), 50);
  auto worker = GreetedWorker(plan, 0);
  network_.SetFault([broken = false](const WireHeader& header) mutable {
    const bool breaks = header.kind == MessageKind::kPush && !std::exchange(broken, true);
    return breaks ? InProcessNetwork::Fate::kBreak : InProcessNetwork::Fate::kDeliver;
  });
  worker->Push(0, 0, 1);
  worker->Push(0, 0, 1);
  EXPECT_EQ(worker->Receive().header.step, 1);
  EXPECT_EQ(ps_metrics_.pushes(), 1);
}

TEST_F(ShardThreadTest, WorkerMaySayHelloAgain) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  auto worker = GreetedWorker(plan, 0);
  worker->Hello();
  EXPECT_EQ(worker->Receive().header.kind, MessageKind::kHello);
  worker = GreetedWorker(plan, 0);  // from another address
  ExpectAlive(*worker, plan, 0);
}

TEST_F(ShardThreadTest, MessagesOfOtherGenerationsAreRefused) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1, .generation = 3});
  Install(plan);
  auto worker = GreetedWorker(plan, 0);
  for (uint32_t generation : {2u, 4u}) {
    v1::JobPlan other = plan;
    other.set_generation(generation);
    worker->Send(FetchHeader(other, 0, 0, 0));
    EXPECT_EQ(worker->Receive().header.kind, MessageKind::kRefused);
    worker->Send(PushHeader(other, 0, 0, 0), std::string(28, 'x'));
    EXPECT_EQ(worker->Receive().header.kind, MessageKind::kRefused);
  }
  ExpectAlive(*worker, plan, 0);
  EXPECT_EQ(Refused(RefusalReason::kOldGeneration), 2);
  EXPECT_EQ(Refused(RefusalReason::kUnknownJob), 2);
  EXPECT_EQ(ps_metrics_.pushes(), 0);
}

TEST_F(ShardThreadTest, GreetedWorkerIsToldWhyItsMessageIsRefused) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  auto worker = GreetedWorker(plan, 0);
  worker->Send(PushHeader(plan, 5, 0, 0), std::string(28, 'x'));
  const WireHeader refusal = worker->Receive().header;
  EXPECT_EQ(refusal.kind, MessageKind::kRefused);
  EXPECT_EQ(refusal.reason, RefusalReason::kWrongStep);
  EXPECT_EQ(refusal.step, 5);
  worker->Send(FetchHeader(plan, 0, 12, 0));
  EXPECT_EQ(worker->Receive().header.reason, RefusalReason::kWrongChunk);
  worker->Send(PushHeader(plan, 0, 0, 0), "");
  EXPECT_EQ(worker->Receive().header.reason, RefusalReason::kWrongLength);
  worker->Send(FetchHeader(plan, 0, 0, 0), "payload");
  EXPECT_EQ(worker->Receive().header.reason, RefusalReason::kBadHeader);
  ExpectAlive(*worker, plan, 0);
}

class GarbageTest : public ShardThreadTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutAProgram, GarbageTest, testing::Bool());

TEST_P(GarbageTest, GarbageHeadersChangeNothing) {
  const v1::JobPlan plan =
      MakeTestPlan({.parameters = {7, 9}, .workers = 3, .has_program = GetParam()});
  Install(plan);
  thread_->StartJob(plan.job_number(), plan.generation(), 5);
  auto worker = GreetedWorker(plan, 1);
  std::mt19937_64 random(7);
  constexpr int64_t kNumbers[] = {0, 1, 2, 3, 7, -1, 28, 36, INT32_MAX, INT64_MAX, INT64_MIN};
  auto pick = [&] { return kNumbers[random() % std::size(kNumbers)]; };
  for (int i = 0; i < 20000; ++i) {
    if (!worker->lost().ok()) worker->Greet(thread_->address());
    WireHeader header{.kind = static_cast<MessageKind>(1 + random() % (random() % 8 == 0 ? 11 : 2)),
                      .dtype = static_cast<WireDType>(random() % 2),
                      .reason = static_cast<RefusalReason>(random() % 11),
                      .generation = random() % 4 != 0 ? 1 : static_cast<uint32_t>(pick()),
                      .job = random() % 16 != 0 ? 7 : static_cast<uint64_t>(pick()),
                      .step = 1 + pick(),
                      .chunk = static_cast<uint32_t>(pick()),
                      .rank = random() % 16 != 0 ? 1 : static_cast<uint32_t>(pick()),
                      .scalar = random() % 2 == 0 ? std::numeric_limits<double>::quiet_NaN() : 0.5,
                      .loss_scale = static_cast<float>(random() % 2)};
    worker->Send(header, std::string(random() % 3 == 0 ? 0 : random() % 50, 'g'));
    worker->Receive(absl::ZeroDuration());
  }
  auto other = GreetedWorker(plan, 2);
  ExpectAlive(*other, plan, 2);
  EXPECT_EQ(progress_.lowest_version, 0);
}

TEST_F(ShardThreadTest, DeathOfAWorkerDoesNotDisturbOtherJobs) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 2});
  const v1::JobPlan other_plan = MakeTestPlan({.workers = 1, .job_number = 8});
  Install(plan);
  Install(other_plan);
  thread_->StartJob(7, 1, 10);
  thread_->StartJob(8, 1, 10);
  auto worker0 = GreetedWorker(plan, 0);
  auto worker1 = GreetedWorker(plan, 1);
  auto other = GreetedWorker(other_plan, 0);
  worker0->Push(0, 0, 1);
  worker1.reset();
  other->Push(0, 0, 1);
  EXPECT_EQ(other->Receive().header.step, 1);
  // The lost worker comes back, and the step continues.
  worker1 = GreetedWorker(plan, 1);
  worker1->Push(0, 0, 1);
  EXPECT_EQ(worker0->Receive().header.step, 1);
  EXPECT_EQ(worker1->Receive().header.step, 1);
}

TEST_F(ShardThreadTest, ListenerIsToldWhichLinkBroke) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 2});
  Install(plan);
  auto worker = GreetedWorker(plan, 1);
  thread_->StartJob(plan.job_number(), plan.generation(), 10);
  worker.reset();
  EXPECT_EQ(listener_.AwaitLostLinks(1), std::vector<std::string>{"worker-1"});
}

TEST_F(ShardThreadTest, ReleaseFreesTheMemory) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  auto worker = GreetedWorker(plan, 0);
  EXPECT_GT(budget_.used_bytes(), 0);
  thread_->Release(plan.job_number(), plan.generation());
  listener_.AwaitReleased(1);
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(ShardThreadTest, ReleasedShardDoesNotWaitForAStalledPeer) {
  thread_ = *ShardThread::Start(
      [this]() -> absl::StatusOr<std::unique_ptr<Transport>> { return network_.MakeTransport(); },
      &ps_metrics_, /*release_wait=*/absl::ZeroDuration());
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  auto standing = GreetedWorker(plan, 0);
  auto other = GreetedWorker(plan, 1);
  standing->Send(FetchHeader(plan, 0, 0, 0));  // but does not take the answer
  ExpectAlive(*other, plan, 1);
  thread_->Release(plan.job_number(), plan.generation());
  listener_.AwaitReleased(1);
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(ShardThreadTest, HaltedShardIsHandedOverDespiteAStalledPeer) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 2});
  Install(plan);
  auto sleeper = GreetedWorker(plan, 0);
  thread_->StartJob(plan.job_number(), plan.generation(), 10);
  sleeper->Send(FetchHeader(plan, 0, 0, 0));  // but never takes the answer
  listener_.KeepReleasedShard();
  thread_->Halt(plan.job_number(), plan.generation());
  listener_.AwaitReleased(1);
  const std::unique_ptr<ParameterShard> shard = listener_.TakeShard();
  ASSERT_NE(shard, nullptr);
  EXPECT_TRUE(shard->idle());
  EXPECT_EQ(shard->held_versions().newest, 0);
}

TEST_F(ShardThreadTest, ReleasedShardKeepsItsLinksUntilThePeersLeave) {
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  auto first = GreetedWorker(plan, 0);
  auto second = GreetedWorker(plan, 1);
  thread_->Release(plan.job_number(), plan.generation());
  listener_.AwaitReleased(1);
  EXPECT_EQ(budget_.used_bytes(), 0);
  // Neither peer is told anything. A peer that does not know of the release and connects only now
  // is not told either.
  first->Push(0, 0, 1);
  second->Send(FetchHeader(plan, 0, 0, 1));
  auto late = Worker(plan, 1);
  late->Connect(thread_->address());
  late->Hello();
  AwaitRefused(RefusalReason::kUnknownJob, 3);
  for (FakeWorker* worker : {first.get(), second.get(), late.get()}) {
    EXPECT_EQ(worker->Receive(absl::ZeroDuration()).header.job, 0);
    EXPECT_TRUE(worker->lost().ok()) << worker->lost();
  }
  // When all peers have left, no peer is admitted any more.
  first.reset();
  second.reset();
  late.reset();
  // The thread has noticed that they left before it finishes the second of two commands.
  for (const uint64_t job : {8, 9}) Install(MakeTestPlan({.job_number = job}));
  auto unauthenticated_peer = Worker(plan, 0);
  unauthenticated_peer->Connect(thread_->address());
  EXPECT_TRUE(absl::IsPermissionDenied(unauthenticated_peer->AwaitLost()));
}

TEST_F(ShardThreadTest, ReleasedShardKeepsItsLinksForALimitedTime) {
  thread_ = *ShardThread::Start(
      [this]() -> absl::StatusOr<std::unique_ptr<Transport>> { return network_.MakeTransport(); },
      &ps_metrics_, /*release_wait=*/absl::ZeroDuration());
  const v1::JobPlan plan = MakeTestPlan({});
  Install(plan);
  auto worker = GreetedWorker(plan, 0);
  thread_->Release(plan.job_number(), plan.generation());
  EXPECT_FALSE(worker->AwaitLost().ok());
}

TEST_F(ShardThreadTest, LinksPassOnToTheNextGeneration) {
  const v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  Install(first);
  thread_->StartJob(first.job_number(), 1, 50);
  auto a = GreetedWorker(first, 0);
  auto b = GreetedWorker(first, 1);
  a->Push(0, 0, 1);
  b->Push(0, 0, 1);
  EXPECT_EQ(a->Receive().header.step, 1);
  EXPECT_EQ(b->Receive().header.step, 1);

  Install(second);
  listener_.AwaitReleased(1);
  thread_->StartJob(second.job_number(), 2, 50);
  a->Become(second, 1);
  b->Become(second, 0);
  for (FakeWorker* worker : {a.get(), b.get()}) {
    worker->Hello();
    const WireHeader answer = worker->Receive().header;
    EXPECT_EQ(answer.kind, MessageKind::kHello);
    EXPECT_EQ(answer.generation, 2);
  }
  b->Send(FetchHeader(second, 0, 0, 0));
  const Values initial = b->Receive().payload;
  a->Push(0, 0, 1);
  b->Push(0, 0, 3);
  for (FakeWorker* worker : {a.get(), b.get()}) {
    const FakeWorker::Message answer = worker->Receive();
    EXPECT_EQ(answer.header.step, 1);
    EXPECT_EQ(answer.header.rank, worker == a.get() ? 1 : 0);
    EXPECT_EQ(answer.header.generation, 2);
    EXPECT_FLOAT_EQ(answer.payload[0], initial[0] - 0.5f * 4);
  }
  EXPECT_TRUE(a->lost().ok());
  EXPECT_TRUE(b->lost().ok());
}

// The server releases a generation when it begins to prepare the next one.
TEST_F(ShardThreadTest, LinksPassOnAfterARelease) {
  const v1::JobPlan first = MakeTestPlan({.workers = 1});
  const v1::JobPlan second = MakeTestPlan({.workers = 1, .generation = 2});
  Install(first);
  auto worker = GreetedWorker(first, 0);
  thread_->Release(first.job_number(), 1);
  listener_.AwaitReleased(1);
  Install(second);
  worker->Become(second, 0);
  worker->Hello();
  EXPECT_EQ(worker->Receive().header.kind, MessageKind::kHello);
  ExpectAlive(*worker, second, 0);
}

TEST_F(ShardThreadTest, MessagesOfOtherGenerationsThanTheInstalledOneAreRefused) {
  const v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  const v1::JobPlan third = MakeTestPlan({.generation = 3});
  Install(first);
  auto worker = GreetedWorker(first, 0);
  auto other = GreetedWorker(first, 1);
  Install(second);
  auto refusal_of = [&](const v1::JobPlan& plan, int rank, MessageKind kind) {
    WireHeader header = FetchHeader(plan, 0, 0, rank);
    header.kind = kind;
    if (kind == MessageKind::kPush) header.dtype = WireDType::kF32;
    worker->Send(header, std::string(kind == MessageKind::kPush ? 28 : 0, 'x'));
    const WireHeader answer = worker->Receive().header;
    EXPECT_EQ(answer.kind, MessageKind::kRefused);
    EXPECT_EQ(answer.generation, plan.generation());
    return answer.reason;
  };
  using enum MessageKind;
  for (const MessageKind kind : {kHello, kPush, kFetch}) {
    EXPECT_EQ(refusal_of(first, 0, kind), RefusalReason::kOldGeneration);
    EXPECT_EQ(refusal_of(third, 0, kind), RefusalReason::kUnknownJob);
  }
  // The worker has no rank in this generation before it says HELLO.
  EXPECT_EQ(refusal_of(second, 1, kPush), RefusalReason::kNotGreeted);
  EXPECT_EQ(refusal_of(second, 1, kFetch), RefusalReason::kNotGreeted);
  EXPECT_EQ(refusal_of(second, 2, kHello), RefusalReason::kWrongRank);
  worker->Become(second, 1);
  worker->Hello();
  EXPECT_EQ(worker->Receive().header.kind, kHello);
  // A message that it sent under its old rank may still arrive.
  for (const MessageKind kind : {kHello, kPush, kFetch}) {
    EXPECT_EQ(refusal_of(first, 0, kind), RefusalReason::kOldGeneration);
  }

  EXPECT_EQ(ps_metrics_.pushes(), 0);
  ExpectAlive(*worker, second, 1);
  EXPECT_TRUE(other->lost().ok());
  EXPECT_EQ(Refused(RefusalReason::kBadHeader), 0);
}

TEST_F(ShardThreadTest, PeerOfTheLastGenerationIsNotAdmitted) {
  const v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  Install(first);
  Install(second);
  auto zombie = Worker(first, 0);
  zombie->Connect(thread_->address());
  EXPECT_TRUE(absl::IsPermissionDenied(zombie->AwaitLost()));
  auto worker = GreetedWorker(second, 0);
  ExpectAlive(*worker, second, 0);
}

TEST_F(ShardThreadTest, PeerThatDoesNotFollowIsCutOffOneGenerationLater) {
  const v1::JobPlan first = MakeTestPlan({});
  const v1::JobPlan second = MakeTestPlan({.generation = 2});
  const v1::JobPlan third = MakeTestPlan({.generation = 3});
  Install(first);
  auto survivor = GreetedWorker(first, 0);
  auto zombie = GreetedWorker(first, 1);
  Install(second);
  survivor->Become(second, 0);
  survivor->Hello();
  EXPECT_EQ(survivor->Receive().header.kind, MessageKind::kHello);
  EXPECT_TRUE(zombie->lost().ok());
  Install(third);
  EXPECT_FALSE(zombie->AwaitLost().ok());
  survivor->Become(third, 0);
  survivor->Hello();
  EXPECT_EQ(survivor->Receive().header.kind, MessageKind::kHello);
  ExpectAlive(*survivor, third, 0);
}

TEST_F(ShardThreadTest, PeerThatFollowsTakesItsNewRankFromTheHolder) {
  const v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  Install(first);
  auto worker = GreetedWorker(first, 0);
  Install(second);
  auto before = GreetedWorker(second, 1);
  worker->Become(second, 1);
  worker->Hello();
  EXPECT_EQ(worker->Receive().header.kind, MessageKind::kHello);
  EXPECT_FALSE(before->AwaitLost().ok());
  ExpectAlive(*worker, second, 1);
}

TEST_F(ShardThreadTest, DifferentTokenEndsTheLinksOfTheLastGeneration) {
  v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  second.set_session_token("another-token-16");
  Install(first);
  auto worker = GreetedWorker(first, 0);
  Install(second);
  worker->Become(second, 0);
  worker->Hello();
  AwaitRefused(RefusalReason::kUnknownJob, 1);
  EXPECT_EQ(worker->Receive(absl::ZeroDuration()).header.job, 0);
  worker->Greet(thread_->address());
  ExpectAlive(*worker, second, 0);
}

TEST_F(ShardThreadTest, OlderGenerationIsNotInstalledAfterALaterOne) {
  const v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  Install(second);
  auto worker = GreetedWorker(second, 0);
  for (const v1::JobPlan& plan : {first, second}) {
    thread_->Install(*ParameterShard::Create(std::make_shared<v1::JobPlan>(plan), kFirstShard,
                                             *budget_.Reserve(0, absl::ZeroDuration())),
                     &listener_, &progress_);
  }
  listener_.AwaitRefused(2);
  ExpectAlive(*worker, second, 0);
  EXPECT_EQ(listener_.released(), 0);
}

// A sanitizer checks the access: memory of the last generation is read after the next one is
// installed.
TEST_F(ShardThreadTest, TransfersUnderWayDuringTheChangeEndFirst) {
  const v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  Install(first);
  auto slow = GreetedWorker(first, 0);
  auto other = GreetedWorker(first, 1);
  slow->Send(FetchHeader(first, 0, 0, 0));
  other->Push(0, 0, 1);
  ExpectAlive(*other, first, 1);
  const int64_t bytes = budget_.used_bytes();

  Install(second);
  other->Become(second, 0);
  other->Hello();
  EXPECT_EQ(other->Receive().header.kind, MessageKind::kHello);
  ExpectAlive(*other, second, 0);
  EXPECT_EQ(listener_.released(), 0);
  EXPECT_GT(budget_.used_bytes(), bytes);

  const FakeWorker::Message answer = slow->Receive();
  EXPECT_EQ(answer.header.generation, 1);
  EXPECT_EQ(answer.payload.size(), first.chunks(0).elements());
  listener_.AwaitReleased(1);
  EXPECT_EQ(budget_.used_bytes(), bytes);
  slow->Become(second, 1);
  slow->Hello();
  EXPECT_EQ(slow->Receive().header.kind, MessageKind::kHello);
}

TEST_F(ShardThreadTest, PeerThatDelaysTheEndOfTheLastGenerationIsCutOff) {
  thread_ = *ShardThread::Start(
      [this]() -> absl::StatusOr<std::unique_ptr<Transport>> { return network_.MakeTransport(); },
      &ps_metrics_, /*release_wait=*/absl::ZeroDuration());
  const v1::JobPlan first = MakeTestPlan({}), second = MakeTestPlan({.generation = 2});
  Install(first);
  auto standing = GreetedWorker(first, 0);
  auto other = GreetedWorker(first, 1);
  standing->Send(FetchHeader(first, 0, 0, 0));  // but does not take the answer
  ExpectAlive(*other, first, 1);
  Install(second);
  listener_.AwaitReleased(1);
  EXPECT_FALSE(standing->AwaitLost().ok());
  auto worker = GreetedWorker(second, 0);
  ExpectAlive(*worker, second, 0);
}

TEST_F(ShardThreadTest, SnapshotsGoToTheListener) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  thread_->StartJob(plan.job_number(), plan.generation(), 10);
  thread_->TakeSnapshot(plan.job_number(), plan.generation(), 4, 0);
  const auto snapshot = listener_.AwaitSnapshot();
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->id, 4);
  auto worker = GreetedWorker(plan, 0);
  worker->Push(0, 0, 1);
  EXPECT_EQ(worker->Receive().header.step, 1);
  thread_->TakeSnapshot(plan.job_number(), plan.generation(), 5, 0);
  listener_.AwaitDeclined(1);
}

TEST_F(ShardThreadTest, UpdateWithNanIsAppliedAndCounted) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  thread_->StartJob(plan.job_number(), plan.generation(), 10);
  auto worker = GreetedWorker(plan, 0);
  worker->Push(0, 0, std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(worker->Receive().payload[0]));
  EXPECT_EQ(ps_metrics_.nonfinite_gradients.Value(), 1);
  EXPECT_THAT(metrics_.Render(),
              HasSubstr(absl::StrCat("muster_ps_job_nonfinite_gradients_total{job=\"", plan.job(),
                                     "\"} 1\n")));
}

TEST_F(ShardThreadTest, StoppingReleasesEveryShardAndRefusesNewOnes) {
  const v1::JobPlan plan = MakeTestPlan({.workers = 1});
  Install(plan);
  auto worker = GreetedWorker(plan, 0);
  thread_->Stop();
  EXPECT_EQ(listener_.released(), 1);
  EXPECT_EQ(budget_.used_bytes(), 0);

  thread_->Install(*ParameterShard::Create(std::make_shared<v1::JobPlan>(plan), kFirstShard,
                                           *budget_.Reserve(0, absl::ZeroDuration())),
                   &listener_, &progress_);
  EXPECT_EQ(listener_.refused(), 1);
}

}  // namespace
}  // namespace muster::shard_thread_test
