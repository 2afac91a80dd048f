// Parameter servers for tests: they sum in rank order (ssp and asp: apply each push at once;
// local_sgd: take the mean), do plain SGD, keep the first loss scale and can be stopped.
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

// One shard of one job on a thread of its own.
class FakeShard : private MessageReceiver {
 public:
  explicit FakeShard(InProcessNetwork& network);
  ~FakeShard() override { Stop(); }

  std::string address() const { return address_; }
  void Serve(std::shared_ptr<const v1::JobPlan> plan, int shard, int64_t total_steps);

  // While stalled it receives nothing, from the return of Stall(true) on.
  void Stall(bool stall);
  // Dies: everyone connected hears of it.
  void Stop();

  // As if other workers had closed all steps before `version`, each adding 1 to all values. What is
  // pushed for these steps is late: dropped and answered with the version there is.
  void Overtake(int64_t version);
  int64_t late_pushes() const { return late_pushes_; }

  // Chunks in the order in which rank 0 pushed them.
  std::vector<int> pushed_chunks() const;
  // Pushes that have begun to come in.
  int64_t pushes_placed() const { return pushes_placed_; }
  // Payloads of those received.
  int64_t push_bytes() const { return push_bytes_; }
  // Waits until `pushes` have been received in all.
  void AwaitPushes(int64_t pushes) const;
  std::vector<float> values(int chunk) const;
  void RefuseChunk(int chunk, RefusalReason reason);
  // Every HELLO from now on says that it is of `shard`, every value that it is of `chunk`: -1 is
  // the right one.
  void Claim(int shard, int chunk);

 private:
  struct Chunk {
    int64_t version = 0;
    std::vector<float> values;
    std::map<uint32_t, std::vector<float>> gradients;  // by rank
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
  void Average(Chunk& chunk);
  void Apply(int index, Chunk& chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(uint32_t rank, int index, const Chunk& chunk);

  std::unique_ptr<Transport> transport_;
  const std::string address_;
  std::shared_ptr<const v1::JobPlan> plan_;
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
  int64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  bool stall_ ABSL_GUARDED_BY(mu_) = false;
  bool is_stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_;
};

// The ps side of a whole job, and the plan to go with it.
class FakePs {
 public:
  struct Options {
    v1::Graph graph;
    v1::JobSpec spec;  // data and training; optimizer sgd
    int64_t chunk_bytes = 1 << 10;
    int workers = 1;
    int shards = 2;              // shard i is thread 0 of member "ps-<i>"
    int64_t total_steps = 1000;  // local_sgd: its last round may be shorter
  };
  FakePs(InProcessNetwork& network, const Options& options);

  const std::shared_ptr<const v1::JobPlan>& plan() const { return plan_; }
  FakeShard& shard(int i) { return *shards_[i]; }

  // The parameter as the shards have it now.
  std::vector<float> parameter(int p) const;

 private:
  std::vector<std::unique_ptr<FakeShard>> shards_;
  std::shared_ptr<const v1::JobPlan> plan_;
};

}  // namespace muster
