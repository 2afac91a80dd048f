// A whole job on shard threads, for tests of steps that all shards decide about together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/plan/parameter_group.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/core/parameter_shard.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/fake_peers.h"
#include "services/ps/ps_metrics.h"
#include "services/ps/shard_thread.h"

namespace muster {

// Returns element i of the gradient of parameter p, from `rank` at `step`.
using GradientOf = std::function<float(int64_t step, int rank, int p, int64_t i)>;

inline float Wavy(int64_t step, int rank, int p, int64_t i) {
  return std::sin(static_cast<float>(3 * step + 7 * rank + 11 * p) + 0.37f * static_cast<float>(i));
}

// One job on shard threads that talk to each other. The test's thread plays the workers. Frozen
// parameters are not pushed.
class JudgedJob {
 public:
  explicit JudgedJob(const v1::JobPlan& plan) : plan_(plan) {
    for (int shard = 0; shard < plan_.shards_size(); ++shard) {
      threads_.push_back(*ShardThread::Start(
          [this]() -> absl::StatusOr<std::unique_ptr<Transport>> {
            return network_.MakeTransport();
          },
          &ps_metrics_));
      plan_.mutable_shards(shard)->set_address(threads_[shard]->address());
    }
    progress_ = std::vector<ShardProgress>(plan_.shards_size());
    Install();
    for (int rank = 0; rank < plan_.workers_size(); ++rank) {
      for (int shard = 0; shard < plan_.shards_size(); ++shard) {
        workers_.push_back(std::make_unique<FakeWorker>(&network_, plan_, rank));
        workers_.back()->Greet(threads_[shard]->address());
      }
    }
    Start();
  }

  // Begins the next generation from its initial values, on the existing links. Every worker gets
  // another rank there.
  void BeginNextGeneration() {
    plan_.set_generation(plan_.generation() + 1);
    Install();
    std::rotate(workers_.begin(), workers_.begin() + plan_.shards_size(), workers_.end());
    for (int rank = 0; rank < plan_.workers_size(); ++rank) {
      for (int shard = 0; shard < plan_.shards_size(); ++shard) {
        Worker(rank, shard).Become(plan_, rank);
        Worker(rank, shard).Hello();
        EXPECT_EQ(Worker(rank, shard).Receive().header.kind, MessageKind::kHello);
      }
    }
    Start();
  }

  // Expects that the shard answers a fetch of that version.
  void ExpectAlive(int shard, int64_t version) {
    const auto chunk = std::ranges::find(plan_.chunks(), shard, &v1::PlanChunk::shard);
    const auto index = static_cast<int>(chunk - plan_.chunks().begin());
    Worker(0, shard).Send(FetchHeader(plan_, version, index, 0));
    EXPECT_EQ(Worker(0, shard).Receive().header.kind, MessageKind::kParams);
  }

  // Releases the shard and waits until its memory is free.
  void ReleaseShard(int shard) {
    threads_[shard]->Release(plan_.job_number(), plan_.generation());
    listener_.AwaitReleased(++released_);
  }

  // Returns the shards' values at `version`, by parameter.
  const std::vector<Values>& Fetch(int64_t version) {
    Clear();
    for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
      FakeWorker& worker = Worker(0, plan_.chunks(chunk).shard());
      worker.Send(FetchHeader(plan_, version, chunk, 0));
      Keep(worker.Receive());
    }
    return values_;
  }

  // Runs one step and keeps the answers to rank 0.
  void Step(int64_t step, const GradientOf& gradient_of) {
    for (int rank = plan_.workers_size() - 1; rank >= 0; --rank) {
      for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
        const v1::PlanChunk& cut = plan_.chunks(chunk);
        if (IsFrozen(cut)) continue;
        Values gradient;
        for (int64_t i = 0; i < cut.elements(); ++i) {
          gradient.push_back(gradient_of(step, rank, cut.parameter(), cut.offset() + i));
        }
        Worker(rank, cut.shard()).Push(step, chunk, gradient);
      }
    }
    Clear();
    squares_ = 0;
    for (int rank = plan_.workers_size() - 1; rank >= 0; --rank) {
      for (int chunk = 0; chunk < plan_.chunks_size(); ++chunk) {
        if (IsFrozen(plan_.chunks(chunk))) continue;
        const FakeWorker::Message answer = Worker(rank, plan_.chunks(chunk).shard()).Receive();
        ASSERT_EQ(answer.header.step, step + 1);
        Keep(answer);
        loss_scale_ = answer.header.loss_scale;
        if (rank == 0) squares_ += answer.header.scalar;
      }
    }
  }

  std::shared_ptr<const ShardSnapshot> Snapshot(int shard, int64_t step) {
    threads_[shard]->TakeSnapshot(plan_.job_number(), plan_.generation(), 99, step);
    return listener_.AwaitSnapshot();
  }

  const v1::JobPlan& plan() const { return plan_; }
  // The values after the last step, by parameter.
  const std::vector<Values>& values() const { return values_; }
  float loss_scale() const { return loss_scale_; }
  // Stops the shard's thread; to the other shards this looks like the death of its process.
  void StopShard(int shard) { threads_[shard]->Stop(); }
  FakeListener& listener() { return listener_; }
  // Greets again, as a worker does after its link was cut.
  void GreetAgain(int rank, int shard) { Worker(rank, shard).Greet(threads_[shard]->address()); }
  double squares() const { return squares_; }
  double skipped() { return ps_metrics_.skipped_steps.Value(); }
  std::string metrics() const { return metrics_.Render(); }
  double late() { return ps_metrics_.late_pushes.Value(); }
  const ShardProgress& progress(int shard) const { return progress_[shard]; }
  double refused(RefusalReason reason) { return ps_metrics_.refused(reason).Value(); }
  FakeWorker& Worker(int rank, int shard) { return *workers_[rank * plan_.shards_size() + shard]; }

 private:
  void Install() {
    for (int number = 0; number < plan_.shards_size(); ++number) {
      auto shard = *ParameterShard::Create(
          std::make_shared<v1::JobPlan>(plan_), ShardIndex(number),
          *budget_.Reserve(ParameterShard::BytesNeeded(plan_, ShardIndex(number)),
                           absl::ZeroDuration()));
      for (const LocalChunk chunk : shard->chunks()) shard->Initialize(chunk);
      threads_[number]->Install(std::move(shard), &listener_, &progress_[number]);
    }
    installed_ += plan_.shards_size();
    listener_.AwaitInstalled(installed_);
  }
  void Start() {
    for (auto& thread : threads_) {
      thread->StartJob(plan_.job_number(), plan_.generation(), /*total_steps=*/1000);
    }
  }

  bool IsFrozen(const v1::PlanChunk& chunk) const {
    return TreatmentOf(plan_.spec().training(), plan_.graph().parameters(chunk.parameter())).frozen;
  }

  void Clear() {
    values_.assign(plan_.graph().parameters_size(), {});
    for (size_t p = 0; p < values_.size(); ++p) {
      values_[p].resize(plan_.graph().parameters(static_cast<int>(p)).shape(0));
    }
  }

  void Keep(const FakeWorker::Message& answer) {
    ASSERT_EQ(answer.header.kind, MessageKind::kParams);
    const v1::PlanChunk& cut = plan_.chunks(static_cast<int>(answer.header.chunk));
    std::memcpy(&values_[cut.parameter()][cut.offset()], answer.payload.data(),
                answer.payload.size() * sizeof(float));
  }

  v1::JobPlan plan_;
  Metrics metrics_;
  PsMetrics ps_metrics_{metrics_};
  MemoryBudget budget_{1 << 24};
  InProcessNetwork network_;
  FakeListener listener_;
  std::vector<ShardProgress> progress_;
  std::vector<std::unique_ptr<ShardThread>> threads_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;  // [rank, shard]
  std::vector<Values> values_;
  int installed_ = 0;
  int released_ = 0;
  float loss_scale_ = 0;
  double squares_ = 0;
};

}  // namespace muster
