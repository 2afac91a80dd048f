// The shard thread must allocate nothing and take no lock in the steady state of training. The
// transport here plays workers and network, and does neither itself, so every count comes from the
// shard thread. UcxTransport keeps pools of its own (lib/transport).
#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_thread.h"

namespace {

thread_local int64_t allocations = 0;
thread_local int64_t locks = 0;

void* Allocate(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

// These count the locks of mutexes; see linkopts in BUILD.bazel.
extern "C" {
void __real__ZN4absl7debian35Mutex4LockEv(absl::Mutex*);
void __wrap__ZN4absl7debian35Mutex4LockEv(absl::Mutex* mu) {
  ++locks;
  __real__ZN4absl7debian35Mutex4LockEv(mu);
}
int __real_pthread_mutex_lock(pthread_mutex_t*);
int __wrap_pthread_mutex_lock(pthread_mutex_t* mu) {
  ++locks;
  return __real_pthread_mutex_lock(mu);
}
}

namespace muster::shard_thread_hot_path_test {
namespace {

constexpr int kWorkers = 3;
constexpr int64_t kWarmupSteps = 20;
constexpr int64_t kSteps = 500;

// Plays all workers of a job, and the replica of its shard if it has one. It pushes step s + 1 of a
// chunk once every rank has version s + 1.
class WorkersTransport : public Transport {
 public:
  WorkersTransport(const v1::JobPlan& plan, absl::Notification* done)
      : plan_(plan), done_(done), gradient_(1024, 0.5f), chunks_(plan.chunks_size()) {}

  void SetReceiver(MessageReceiver* receiver) override { receiver_ = receiver; }
  std::string address() const override { return "workers"; }
  std::string name() const override { return "workers"; }
  void OpenSession(uint64_t, uint32_t, const SessionToken&) override {}
  void CloseSession(uint64_t, uint32_t) override {}
  absl::StatusOr<PeerId> Connect(absl::string_view address, const LinkCredentials& self) override {
    EXPECT_EQ(address, "replica");
    replica_session_ = self.self.job;
    return kReplica;
  }
  void Disconnect(PeerId) override {}

  void Send(PeerId peer, const WireHeader& header, absl::Span<const std::byte>,
            SendDone done) override {
    if (peer == kReplica) {
      if (header.kind == MessageKind::kHello) hello_due_ = true;
      if (header.kind == MessageKind::kPush) ++sums_;
      if (done) done(absl::OkStatus());
      return;
    }
    if (header.kind == MessageKind::kHello) ++greeted_;
    Chunk& chunk = chunks_[header.chunk];
    if (header.kind == MessageKind::kParams && header.step == chunk.step + 1) {
      chunk.answered |= 1u << header.rank;
    }
    if (done) done(absl::OkStatus());
  }

  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte>) override {
    return std::make_unique<MemoryRegistration>();
  }

  int Progress() override {
    if (!ready_) return 0;
    if (greeted_ < kWorkers) return Greet();
    int events = AnswerAsReplica();
    for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
      Chunk& state = chunks_[chunk];
      if (state.answered == (1u << kWorkers) - 1) {
        state.answered = 0;
        ++state.step;
        state.pushed = false;
      }
      if (state.pushed || state.step == kSteps) continue;
      state.pushed = true;
      for (int rank = kWorkers - 1; rank >= 0; --rank) {
        const WireHeader header = HeaderOf(state.step, chunk, rank);
        Deliver(header, gradient_.data());
        // The last rank's repeat arrives after the update and is answered again.
        Deliver(header, gradient_.data());
        ++events;
      }
    }
    Count();
    return events;
  }

  void Wait(absl::Duration) override {}  // the job may not be there yet
  void Wake() override { ready_ = true; }

  int64_t allocations_at_warmup = -1, allocations_at_end = -1;
  int64_t locks_at_warmup = -1, locks_at_end = -1;

 private:
  struct Chunk {
    int64_t step = 0;
    bool pushed = false;
    unsigned answered = 0;  // bit per rank
  };

  int Greet() {
    for (int rank = 0; rank < kWorkers; ++rank) {
      receiver_->PeerJoined(PeerId{rank}, {.job = plan_.job_number(),
                                           .generation = plan_.generation(),
                                           .role = LinkRole::kWorker,
                                           .index = static_cast<uint32_t>(rank)});
      WireHeader header = FetchHeader(plan_, 0, 0, rank);
      header.kind = MessageKind::kHello;
      receiver_->Received(PeerId{rank}, header, {}, {});
    }
    return kWorkers;
  }

  // The replica holds a step when it has all sums of the step.
  int AnswerAsReplica() {
    WireHeader header{.generation = plan_.generation(), .job = replica_session_};
    if (std::exchange(hello_due_, false)) {
      header.kind = MessageKind::kHello;
      receiver_->Received(kReplica, header, {}, {});
    }
    if (sums_ < plan_.chunks_size()) return 0;
    sums_ -= plan_.chunks_size();
    header.kind = MessageKind::kHeld;
    header.step = ++held_;
    receiver_->Received(kReplica, header, {}, {});
    return 1;
  }

  // Some ranks of a job with a program have no gradient. In every fourth step no rank has one.
  WireHeader HeaderOf(int64_t step, int chunk, int rank) const {
    WireHeader header = PushHeader(plan_, step, chunk, rank);
    const bool has_gradient =
        !plan_.spec().model().has_external() || (step % 4 != 0 && (step + rank) % 3 != 0);
    if (!has_gradient) {
      header.dtype = WireDType::kNone;
      header.length = 0;
    }
    return header;
  }

  void Deliver(const WireHeader& header, const void* payload) {
    const PeerId from{static_cast<int32_t>(header.rank)};
    if (header.length == 0) return receiver_->Received(from, header, {}, {});
    const absl::Span<std::byte> place = receiver_->PlacePayload(from, header).memory;
    if (place.empty()) return;
    std::memcpy(place.data(), payload, place.size());
    receiver_->Received(from, header, place, {});
  }

  void Count() {
    int64_t lowest = kSteps;
    for (const Chunk& chunk : chunks_) lowest = std::min(lowest, chunk.step);
    if (lowest >= kWarmupSteps && allocations_at_warmup < 0) {
      allocations_at_warmup = allocations;
      locks_at_warmup = locks;
    }
    if (lowest == kSteps && allocations_at_end < 0) {
      allocations_at_end = allocations;
      locks_at_end = locks;
      done_->Notify();
    }
  }

  static constexpr PeerId kReplica{kWorkers};

  const v1::JobPlan plan_;
  uint64_t replica_session_ = 0;
  bool hello_due_ = false;
  int sums_ = 0;
  int64_t held_ = 0;
  absl::Notification* const done_;
  const std::vector<float> gradient_;
  std::vector<Chunk> chunks_;
  MessageReceiver* receiver_ = nullptr;
  int greeted_ = 0;
  std::atomic<bool> ready_ = false;
};

class QuietListener : public ShardListener {
 public:
  void ShardInstalled(ShardIndex, const absl::Status& status) override { EXPECT_TRUE(status.ok()); }
  void SnapshotTaken(std::shared_ptr<const ShardSnapshot>) override {}
  void SnapshotDeclined(ShardIndex, uint64_t, int64_t, v1::SnapshotOutcome,
                        const std::string&) override {}
  void ShardFailed(ShardIndex, const absl::Status& status, const std::string&) override {
    ADD_FAILURE() << status;
  }
  void LinkLost(ShardIndex, const std::string&) override {}
  void ShardReleased(std::unique_ptr<ParameterShard>) override {}
};

void ExpectQuietSteps(TestPlanOptions options) {
  options.parameters = {1000, 333, 7};
  options.workers = kWorkers;
  options.optimizer.mutable_adamw()->set_learning_rate(0.01);
  v1::JobPlan plan = MakeTestPlan(options);
  if (options.has_replicas) plan.mutable_shards(0)->mutable_backup()->set_address("replica");
  Metrics metrics;
  PsMetrics ps_metrics(metrics);
  MemoryBudget budget(1 << 24);
  QuietListener listener;
  ShardProgress progress;
  absl::Notification done;
  WorkersTransport* transport = nullptr;
  auto thread = *ShardThread::Start(
      [&]() -> absl::StatusOr<std::unique_ptr<Transport>> {
        auto made = std::make_unique<WorkersTransport>(plan, &done);
        transport = made.get();
        return made;
      },
      &ps_metrics);
  auto shard = *ParameterShard::Create(
      std::make_shared<v1::JobPlan>(plan), kFirstShard,
      *budget.Reserve(ParameterShard::BytesNeeded(plan, kFirstShard), absl::ZeroDuration()));
  thread->Install(std::move(shard), &listener, &progress);
  thread->StartJob(plan.job_number(), plan.generation(), 2 * kSteps);
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));

  EXPECT_GT(transport->allocations_at_warmup, 0) << "the counter works";
  EXPECT_GT(transport->locks_at_warmup, 0) << "the counter works";
  EXPECT_EQ(transport->allocations_at_end - transport->allocations_at_warmup, 0);
  EXPECT_EQ(transport->locks_at_end - transport->locks_at_warmup, 0);
  EXPECT_EQ(progress.lowest_version, kSteps);
  EXPECT_GT(ps_metrics.duplicate_pushes.Value(), 0);
}

TEST(ShardThreadHotPathTest, StepsNeitherAllocateNorLock) { ExpectQuietSteps({}); }

TEST(ShardThreadHotPathTest, JudgedStepsNeitherAllocateNorLock) {
  ExpectQuietSteps({.precision = v1::FP16, .clip_norm = 0.1});
}

TEST(ShardThreadHotPathTest, StepsWithAReplicaNeitherAllocateNorLock) {
  ExpectQuietSteps({.has_replicas = true});
  ExpectQuietSteps({.has_replicas = true, .precision = v1::FP16, .clip_norm = 0.1});
}

TEST(ShardThreadHotPathTest, StepsOfAProgramNeitherAllocateNorLock) {
  ExpectQuietSteps({.has_program = true});
  ExpectQuietSteps({.clip_norm = 0.1, .has_program = true});
  ExpectQuietSteps({.has_replicas = true, .clip_norm = 0.1, .has_program = true});
}

v1::SyncSpec Ssp() {
  v1::SyncSpec sync;
  sync.set_mode(v1::SSP);
  sync.set_staleness(1);
  sync.set_staleness_aware(true);
  return sync;
}

v1::SyncSpec OneBackupWorker() {
  v1::SyncSpec sync;
  sync.set_backup_workers(1);
  return sync;
}

TEST(ShardThreadHotPathTest, AsynchronousPushesNeitherAllocateNorLock) {
  ExpectQuietSteps({.sync = Ssp()});
}

TEST(ShardThreadHotPathTest, StepsWithBackupWorkersNeitherAllocateNorLock) {
  ExpectQuietSteps({.sync = OneBackupWorker()});
}

}  // namespace
}  // namespace muster::shard_thread_hot_path_test
