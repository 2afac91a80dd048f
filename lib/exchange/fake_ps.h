// Fake parameter servers for tests, which can be stopped. They sum in rank order, or along the tree
// of logical workers; for ssp and asp
// they apply each push at once, and for local_sgd they sum values that the workers have scaled.
// They use plain SGD and keep the first loss scale. For jobs with model.external they use the
// learning rates and weights of the pushes, as a ps does.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "lib/shard/gate/round_schedule.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/session/session.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// The terms of a push in a job with model.external.
struct PushedTerms {
  int64_t step = 0;
  uint32_t rank = 0;
  int chunk = 0;
  double learning_rate = 0;
  float weight = 0;
  bool has_gradient = true;
};

// One shard of one job on a thread of its own.
class FakeShard : private MessageReceiver {
 public:
  explicit FakeShard(InProcessNetwork& network);
  ~FakeShard() override { Stop(); }

  std::string address() const { return address_; }
  // `values` are by parameter. If empty, the initial ones.
  void Serve(std::shared_ptr<const v1::JobPlan> plan, int shard, int64_t total_steps,
             const std::vector<std::vector<float>>& values = {});

  // The shard receives nothing from the return of Stall(true) until Stall(false).
  void Stall(bool stall);
  // Stops the shard like a death: all connected peers notice it.
  void Stop();

  // Acts as if other workers had closed all steps before `version`, each adding 1 to all values.
  // Pushes for these steps are late: dropped, and answered with the current version.
  void Overtake(int64_t version);
  int64_t late_pushes() const { return late_pushes_; }

  // Chunks in the order in which rank 0 pushed them.
  std::vector<int> pushed_chunks() const;
  // The terms of all pushes, in the order of their arrival; only with model.external.
  std::vector<PushedTerms> terms() const;
  // The number of pushes that have begun to arrive.
  int64_t pushes_placed() const { return pushes_placed_; }
  // The payload bytes of received pushes.
  int64_t push_bytes() const { return push_bytes_; }
  // Waits until `pushes` pushes have been received in total.
  void AwaitPushes(int64_t pushes) const;
  std::vector<float> values(int chunk) const;
  void RefuseChunk(int chunk, RefusalReason reason);
  // Makes every HELLO name `shard` and every value name `chunk`; -1 stands for the right one.
  void Claim(int shard, int chunk);

 private:
  struct Chunk {
    int64_t version = 0;
    std::vector<float> values;
    std::map<uint32_t, std::vector<float>> gradients;  // by rank
    double weights = 0;         // only with model.external: sum over all ranks
    double learning_rate = 0;   // of the last push
    bool has_gradient = false;  // of any rank
    double squares = 0;
    std::map<uint32_t, int64_t> versions;  // by rank: ssp and asp
  };

  void Run();
  void PeerJoined(PeerId peer, const LinkIdentity& who) override { workers_[who.index] = peer; }
  PayloadPlace PlacePayload(PeerId from, const WireHeader& header) override;
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease) override;
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId, const absl::Status&) override {}
  v1::SyncMode mode() const;
  // Records the terms of a push and checks its header.
  void TakeTerms(const WireHeader& push, Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  float Sum(const Chunk& chunk, size_t i) const;
  void Average(Chunk& chunk);
  void Apply(int index, Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(uint32_t rank, int index, const Chunk& chunk);

  std::unique_ptr<Transport> transport_;
  const std::string address_;
  std::shared_ptr<const v1::JobPlan> plan_;
  std::vector<uint8_t> joins_;          // by rank; empty: rank order
  std::map<uint32_t, PeerId> workers_;  // by rank
  std::vector<std::byte> incoming_;
  RoundSchedule rounds_;
  std::atomic<int64_t> pushes_placed_ = 0;
  std::atomic<int64_t> push_bytes_ = 0;
  std::atomic<int64_t> late_pushes_ = 0;
  std::atomic<int> claimed_shard_ = -1;
  std::atomic<int> claimed_chunk_ = -1;
  std::map<int, RefusalReason> refusals_;

  mutable absl::Mutex mu_;
  std::map<int, Chunk> chunks_ ABSL_GUARDED_BY(mu_);
  std::vector<int> pushed_ ABSL_GUARDED_BY(mu_);
  std::vector<PushedTerms> terms_ ABSL_GUARDED_BY(mu_);
  int64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  bool stall_ ABSL_GUARDED_BY(mu_) = false;
  bool is_stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;
};

// The ps side of a whole job, and its plan.
class FakePs {
 public:
  struct Options {
    v1::Graph graph;
    v1::JobSpec spec;  // data and training; optimizer sgd
    int64_t chunk_bytes = 1 << 10;
    int workers = 1;
    int shards = 2;  // shard i is thread 0 of member "ps-<i>"
    uint32_t generation = 1;
    int64_t first_step = 0;
    std::vector<std::vector<float>> values;  // of first_step, by parameter; empty: initial ones
    int64_t total_steps = 1000;              // local_sgd: the last round may be shorter
  };
  FakePs(InProcessNetwork& network, const Options& options);

  const std::shared_ptr<const v1::JobPlan>& plan() const { return plan_; }
  FakeShard& shard(int i) { return *shards_[i]; }

  // Returns the current values of the parameter.
  std::vector<float> parameter(int p) const;

 private:
  std::vector<std::unique_ptr<FakeShard>> shards_;
  std::shared_ptr<const v1::JobPlan> plan_;
};

}  // namespace muster
