// The chunks of one job that one thread owns: values, optimizer slots, and what becomes of a push.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/transport/transport.h"
#include "lib/transport/wire.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"
#include "services/ps/gradient_squares.h"
#include "services/ps/loss_scale.h"
#include "services/ps/memory_budget.h"

namespace muster {

// A shard's values and slots at one version. Does not change until the shard hears
// SnapshotWritten(); keeps its memory.
struct ShardSnapshot {
  struct Piece {
    int chunk;
    int slot;  // 0: values
    absl::Span<const float> elements;
  };
  int shard = 0;
  uint64_t id = 0;  // 0: periodic or final
  int64_t step = 0;
  v1::UpdateState update_state;
  std::vector<Piece> pieces;
  std::shared_ptr<const Slab> memory;
};

// What became of a judged step, see StepsAreJudged().
struct StepVerdict {
  int64_t step = 0;
  bool skipped = false;      // its gradient was not finite
  int64_t skips_in_row = 0;  // up to and with this step
  float loss_scale = 0;      // of the next step; 0: the job has none
};

// What a shard asks of the thread it lives on. Called from inside the shard's methods.
class ShardOutput {
 public:
  virtual ~ShardOutput() = default;
  // As Transport::Send, to the worker of that rank. Without a connection `done` gets an error at
  // once.
  virtual void SendTo(int rank, const WireHeader& header, absl::Span<const std::byte> payload,
                      Transport::SendDone done) = 0;
  // Likewise to another shard of the job.
  virtual void SendToShard(int shard, const WireHeader& header, absl::Span<const std::byte> payload,
                           Transport::SendDone done) = 0;
  // Of every judged step, the same on every shard.
  virtual void StepJudged(const StepVerdict& verdict) = 0;
  // Around every optimizer update.
  virtual void UpdateBegins() = 0;
  virtual void UpdateEnds(double sum_of_squares) = 0;
  // Every chunk is held at the snapshot's step. SnapshotWritten() is to follow.
  virtual void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) = 0;
  virtual void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                                const std::string& message) = 0;
};

// Every chunk has two versions of values and slots and one receive buffer per rank. An update reads
// version s and writes version s + 1 into the other buffer. The gate is BSP: an update happens once
// every rank's gradient is in; they are summed in rank order whatever their order of arrival, so a
// run repeats to the bit.
//
// Where steps are judged (StepsAreJudged), a chunk's gradients are summed as soon as they are in.
// When a shard has summed all of its chunks it sends their sums of squares to shard 0, which adds
// up those of all shards and tells the total to everyone. Only then is the step applied, clipped by
// the norm, or skipped everywhere when that is not finite.
//
// Thread-compatible. No clock, no I/O, no lock; after Create() nothing is allocated but for
// snapshots.
class ParameterShard {
 public:
  // INVALID_ARGUMENT, reason "BAD_PLAN": the plan contradicts itself or exceeds a limit.
  static absl::Status CheckPlan(const v1::JobPlan& plan);
  // What Create() will allocate. The plan is good.
  static int64_t BytesNeeded(const v1::JobPlan& plan, int shard);

  // Allocates; values are zero until Initialize() or RestoreSlice(). The plan is good.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(
      std::shared_ptr<const v1::JobPlan> plan, int shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation);
  ParameterShard(const ParameterShard&) = delete;
  ParameterShard& operator=(const ParameterShard&) = delete;

  // ---- before the first message, on any one thread

  // Fills chunk `index` of [0, chunk_count()) with initial values.
  void Initialize(int index);
  // Begins a restore, also after one that broke off.
  void BeginRestore();
  // One slice of the checkpoint; those of a chunk's slot come in order. DATA_LOSS on a checksum
  // mismatch, INVALID_ARGUMENT for a slice that does not belong here.
  absl::Status RestoreSlice(const v1::ShardSlice& slice);
  // DATA_LOSS naming the first chunk that is not complete.
  absl::Status FinishRestore() const;

  // ---- messages; generation and rank of a header are already checked against this plan

  // Where a push wants its payload, or why it wants none. Only names memory.
  struct Placement {
    absl::Span<std::byte> memory;  // empty: drop the payload
    RefusalReason refusal = RefusalReason::kNone;
    bool repeat = false;  // of this step or the last
  };
  Placement PlacePush(const WireHeader& header);
  // The payload is where PlacePush() wanted it. May update the chunk and send its new value to
  // every rank.
  void PushArrived(const WireHeader& header);
  // After a Placement with `repeat`: sends the value again if the push was applied already.
  void AnswerRepeat(const WireHeader& header);
  // Answers with version `header.step`, which is the current one or the one before.
  RefusalReason Fetch(const WireHeader& header);
  // Payloads of this rank that are under way will not arrive.
  void RankLost(int rank);

  // Squares of shard `header.rank`, to shard 0: where they want to be placed, empty where they are
  // not wanted; then whether the token in front of them was right.
  absl::Span<std::byte> PlaceSquares(const WireHeader& header);
  void SquaresArrived(const WireHeader& header, bool token_is_right);
  // A message of this shard that is under way will not arrive.
  void ShardLost(int shard);
  // From shard 0, the token checked. kWrongStep: not awaited.
  RefusalReason VerdictArrived(const WireHeader& header);

  // ---- life

  // From here on there are updates. Idempotent.
  void Start(int64_t total_steps);
  // Takes snapshot `id` > 0 when every chunk is at `step`; declines if one is beyond. A known id is
  // ignored, a new one supersedes one that still waits.
  void TakeSnapshot(uint64_t id, int64_t step);
  // The snapshot that was taken is not needed any more: what waited for its memory goes on.
  void SnapshotWritten(uint64_t id, int64_t step);
  // No more updates or answers. The memory is still in use until idle().
  void Retire() { started_ = false; }
  // No payload is being received and none sent.
  bool idle() const { return placing_ == 0 && sending_ == 0; }

  void set_output(ShardOutput* output) { output_ = output; }
  const v1::JobPlan& plan() const { return *plan_; }
  int shard() const { return shard_; }
  int chunk_count() const { return static_cast<int>(chunks_.size()); }
  absl::Span<std::byte> memory() const { return slab_->memory(); }
  // Lowest version of the chunks; INT64_MAX without chunks.
  int64_t lowest_version() const { return lowest_; }
  // Current value of chunk `index`, for tests and benchmarks.
  absl::Span<const float> values(int index) const;

 private:
  enum class PushState : uint8_t { kAwaited, kPlacing, kIn };
  struct Chunk {
    int id = 0;  // in the plan
    bool weight_decay = false;
    double statistic_momentum = 0;  // > 0: a statistic, not trained
    int64_t elements = 0;
    float* memory = nullptr;
    int64_t stride = 0;  // floats from one array to the next
    int64_t version = 0;
    int current = 0;  // buffer of `version`; the other holds version - 1
    int pushes_in = 0;
    int sending[2] = {0, 0};  // payloads under way from each buffer
    bool summed = false;      // where steps are judged: the gradients are in that of rank 0
    double sum_of_squares = 0;
    bool held = false;  // copied for `snapshot_`
  };
  // What belongs to a version beside values and slots.
  struct VersionState {
    LossScale loss_scale;
    int64_t skipped = 0;  // steps before it that changed nothing
  };
  struct Judgement {
    bool skip = false;
    double factor = 1;  // on the gradient
  };
  struct SnapshotRequest {
    uint64_t id;
    int64_t step;
  };
  static constexpr int kHeldBuffer = 2;  // beside the two versions

  ParameterShard(std::shared_ptr<const v1::JobPlan> plan, int shard, std::shared_ptr<Slab> slab);

  int ranks() const { return plan_->workers_size(); }
  float* Array(const Chunk& chunk, int buffer, int slot) const;
  float* Gradient(const Chunk& chunk, int rank) const;
  PushState& StateOf(const Chunk& chunk, int rank);
  Chunk* Find(uint32_t id);
  bool MayUpdate(const Chunk& chunk) const;
  void UpdateIfReady(Chunk& chunk);
  void Update(Chunk& chunk);
  void Apply(Chunk& chunk, int next);
  void Skip(Chunk& chunk, int next);
  VersionState& StateOfVersion(int64_t version) { return states_[version % states_.size()]; }
  absl::Status RestoreState(const v1::UpdateState& state);
  void SumIfReady(Chunk& chunk);
  void SendSquares();
  void GiveVerdict();
  void Judge(double sum_of_squares);
  void UpdateAllReady();
  void SendParams(Chunk& chunk, int buffer, int rank, WireHeader header);
  WireHeader HeaderToShard(MessageKind kind, int64_t step) const;
  void CountVersion(const Chunk& chunk);
  void HoldIfDue(Chunk& chunk);
  void ClaimHeldBuffer();
  void Hold(Chunk& chunk);
  void FinishHolding();

  const std::shared_ptr<const v1::JobPlan> plan_;
  const int shard_;
  const std::shared_ptr<Slab> slab_;
  ShardOutput* output_ = nullptr;
  kernels::OptimizerSettings settings_;
  int slots_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<int32_t> index_of_;        // by the plan's chunk id; -1: of another shard
  std::vector<PushState> push_states_;   // [chunk, rank]
  std::vector<const float*> gradients_;  // [rank], of the chunk being summed or updated
  std::vector<int64_t> restored_bytes_;  // [chunk, slot]
  bool started_ = false;
  int64_t total_steps_ = 0;
  int64_t lowest_ = 0;
  int64_t highest_ = 0;
  int chunks_at_lowest_ = 0;
  int64_t placing_ = 0;
  int64_t sending_ = 0;

  // Of the versions that a chunk may have, the one before and the next.
  std::array<VersionState, 3> states_;

  // Where steps are judged: of step lowest_.
  const bool judged_;
  int chunks_summed_ = 0;
  std::vector<double> squares_;  // the message to shard 0
  bool squares_sending_ = false;
  std::optional<Judgement> judgement_;
  int64_t skips_in_row_ = 0;
  std::unique_ptr<GradientSquares> all_squares_;  // of shard 0

  std::optional<SnapshotRequest> snapshot_;  // the one whose copy is in the held buffers
  int chunks_held_ = 0;
  bool snapshot_taken_ = false;
  absl::InlinedVector<SnapshotRequest, 8> waiting_;
  int64_t last_due_ = -1;       // the last step for which a periodic or final snapshot was asked
  uint64_t last_snapshot_ = 0;  // the last id answered
};

}  // namespace muster
