// The chunks of one job that one thread owns: values, optimizer slots, and the handling of pushes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/plan/numbers.h"
#include "lib/shard/agreement/closing_exchange.h"
#include "lib/shard/agreement/step_agreement.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/chunks/shard_assembly.h"
#include "lib/shard/core/chunk_treatment.h"
#include "lib/shard/core/gradient_store.h"
#include "lib/shard/core/shard_answers.h"
#include "lib/shard/core/shard_optimizer.h"
#include "lib/shard/core/shard_output.h"
#include "lib/shard/core/shard_pushes.h"
#include "lib/shard/core/shard_replication.h"
#include "lib/shard/core/shard_snapshots.h"
#include "lib/shard/core/shard_versions.h"
#include "lib/shard/gate/gate.h"
#include "lib/shard/replication/replica_feed.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Every chunk has two versions of values and slots. An update reads the current version and writes
// the next one over the previous one, or into a spare values buffer that is not being sent. The
// gate decides which pushes make an update and when ranks are answered; each consistency mode has
// one gate. This class connects the gate with the parts that keep the rest:
//
//   ShardPushes       Holds the pushes of ranks, and sums their gradients.
//   ShardOptimizer    Computes an update.
//   ShardVersions     Tracks the versions of chunks and their update states.
//   ShardAnswers      Sends values to ranks.
//   ShardSnapshots    Copies all chunks at one version.
//   ShardReplication  Sends sums to the shard's replica, or fills the replica.
//   StepAgreement     Agrees with other shards to apply a judged step, or to skip it.
//   ClosingExchange   Agrees with other shards on the ranks of a step, with backup workers.
//
// If steps are judged (StepsAreJudged), a chunk's gradients are summed as soon as the gate has an
// update, and applied when the shards have agreed on the step. A shard with a replica
// (shard_replica.h) sums a chunk's gradients first and sends the sum to the replica.
//
// The replica is a ParameterShard too, created with the plan of PlanOfReplica(). Its only rank is
// the shard. It answers only with the version that it holds, and gets the verdict of a judged step
// with each sum.
//
// Frozen parameters are fetched and never pushed: they have every version.
//
// A job with a program (model.external) has no learning rate and no shares of the batch that the
// shard knows. Each push names the learning rate of its parameter and the weight of its rank, or
// says that the rank has no gradient. docs/protocol.md has the rules.
//
// Thread-compatible, and so are the parts: none has a lock, and all run on the shard's thread. Time
// is an argument. No I/O. After Create() only snapshots allocate.
class ParameterShard : private JudgedShard {
 public:
  using Clock = ShardSnapshots::Clock;
  using HeldVersions = ShardVersions::Range;
  static constexpr auto kWriteHoldsUpMax = ShardSnapshots::kWriteHoldsUpMax;

  // Returns the memory that Create() allocates, in bytes. Requires: the plan is valid (CheckPlan).
  static int64_t BytesNeeded(const v1::JobPlan& plan, ShardIndex shard) {
    return ChunkStore::BytesNeeded(plan, shard) + GradientBytesNeeded(plan, shard);
  }
  // The part of BytesNeeded() for gradients. It depends on the number of workers, except for the
  // sums that are sent to a replica.
  static int64_t GradientBytesNeeded(const v1::JobPlan& plan, ShardIndex shard) {
    return GradientStore::BytesNeeded(plan, shard);
  }

  // Allocates the shard. Values are zero until Initialize() or RestoreSlice(). Requires: the plan
  // is valid. `gradients` is the reservation for GradientBytesNeeded(); null means that
  // `reservation` contains it.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(
      std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation,
      std::shared_ptr<MemoryBudget::Reservation> gradients = nullptr);
  // Continues at plan->first_step() with the values that `before` holds. `before` is the same shard
  // in an earlier generation of the job, or its replica; it must be retired and idle. Only the
  // memory for gradients is allocated again. Returns FAILED_PRECONDITION (reason "SHARDS_NOT_HELD")
  // if `before` is still in use, has other chunks, or lacks that version. Returns
  // RESOURCE_EXHAUSTED (reason "MEMORY_EXHAUSTED") if the memory cannot be allocated. `before` is
  // destroyed either way.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Continue(
      std::shared_ptr<const v1::JobPlan> plan, std::unique_ptr<ParameterShard> before,
      std::shared_ptr<MemoryBudget::Reservation> gradients);
  ParameterShard(const ParameterShard&) = delete;
  ParameterShard& operator=(const ParameterShard&) = delete;

  // ---- before the first message; any single thread may call these

  // Fills a chunk with its initial values.
  void Initialize(LocalChunk index) { store_->Initialize(index, versions_.current(index)); }
  // Begins a restore, also after one that was abandoned.
  void BeginRestore() { store_->BeginRestore(); }
  // Restores one slice of the checkpoint. The slices of one slot of a chunk must come in order.
  // Returns DATA_LOSS on a checksum mismatch, INVALID_ARGUMENT for a slice that does not belong
  // here.
  absl::Status RestoreSlice(const v1::ShardSlice& slice);
  // Returns DATA_LOSS, naming the first incomplete chunk, unless every array was restored.
  absl::Status FinishRestore() const { return store_->FinishRestore(); }

  // ---- messages; the caller has checked generation and rank of each header

  // The place for the payload of a push, or the reason why it has none. Does not own the memory.
  // A push without a gradient is taken too, and has no payload.
  struct Placement {
    absl::Span<std::byte> memory;  // empty: drop the payload
    bool in_place = false;         // the payload may stay in the sender's memory
    RefusalReason refusal = RefusalReason::kNone;
    bool taken = false;   // PushArrived() or PushLost() must follow
    bool repeat = false;  // the push was taken before
    bool late = false;    // its step was closed without it
  };
  Placement PlacePush(const WireHeader& header);
  // Records that the payload is in its place, or in the sender's memory. In the latter case the
  // shard keeps `lease` until the update, or until the sum if steps are judged. May update the
  // chunk and send its new value. Returns kBadPayload if no encoder makes such a payload, and
  // kOtherLearningRate if another rank has named another one; the rank may push again.
  RefusalReason PushArrived(const WireHeader& header, absl::Span<const std::byte> payload,
                            PayloadLease lease);
  // Called after a Placement that is `repeat` or `late`. Sends the value unless an answer is still
  // to come.
  void AnswerRepeat(const WireHeader& header);
  // Answers with version `header.step`, or as the gate decides, now or when that version exists.
  // ShardAnswers limits the answers under way.
  RefusalReason Fetch(const WireHeader& header);
  // Records that the payload of a placed push will not arrive. The rank may push it again.
  void PushLost(const WireHeader& header);
  // Gives up this rank's payloads under way. Lent payloads stay.
  void RankLost(Rank rank);

  // ---- messages of other shards

  // Handle the reports of shards, and the answers to them. PlaceReport() returns the place of the
  // payload, or an empty span if the shard does not want the message. Each place is followed by
  // ReportArrived() or ReportLost(). The kind of a message names its receiver:
  //
  //   kSquares, kNorms, kTrust   StepAgreement
  //   kArrived                   ClosingExchange
  //   kState                     ReplicaFilling, at a replica
  absl::Span<std::byte> PlaceReport(const WireHeader& header);
  void ReportArrived(const WireHeader& header);
  void ReportLost(const WireHeader& header);
  // Handles a decision of shard 0: a verdict (kVerdict), or the ranks of a step (kClosed), which
  // are the payload. Returns kWrongStep if it is not awaited, kWrongLength if the payload has the
  // wrong size.
  RefusalReason DecisionArrived(const WireHeader& header, absl::Span<const std::byte> payload);
  // Gives up all messages under way from `shard`.
  void ShardLost(ShardIndex shard);

  // ---- replicas

  // Called when the replica of this shard is connected. Sends it the state that it lacks.
  void ReplicaConnected() { replication_.ReplicaConnected(); }
  // ReplicaHolds(): the replica reports that it holds version `header.step` of all chunks.
  // ReplicasHold(): another shard reports this for its own replica, or shard 0 for all.
  void ReplicaHolds(const WireHeader& header);
  void ReplicasHold(const WireHeader& header);
  // The version that the replica is known to hold.
  int64_t replica_version() const { return replication_.replica_version(); }

  // ---- lifetime

  // Allows updates from now on. Idempotent.
  void Start(int64_t total_steps);
  // Takes snapshot `id` > 0 when every chunk is at `step`. Declines it if a chunk is beyond `step`
  // or can never be there. A known id is ignored. A new id supersedes one that still waits.
  void TakeSnapshot(uint64_t id, int64_t step);
  // Releases the memory of the snapshot that was taken. Work that waited for this memory continues.
  void SnapshotWritten(uint64_t id, int64_t step);
  // Called in every turn of the shard's thread. If the current snapshot is still being written
  // after kWriteHoldsUpMax, further snapshots that delay the update of a chunk are passed over
  // (declined with SNAPSHOT_MISSED). `clock` is called once per snapshot, and again while one
  // waits.
  void PassOverSnapshots(absl::FunctionRef<Clock::time_point()> clock);
  // Lets CopyOne() copy chunks for snapshots; a chunk is copied at the latest before its next
  // update. Without this call, a chunk is copied as soon as it reaches the step, although workers
  // may then be waiting for the values of the chunks after it.
  void DeferCopies() { snapshots_.DeferCopies(); }
  // Copies one chunk that a snapshot waits for. Returns false if there is none. Called when the
  // thread is otherwise idle, and regularly if it never is. Chunks without further updates are
  // copied only here.
  bool CopyOne() { return !retired_ && snapshots_.CopyOne(); }
  // Stops updates and answers, and returns lent payloads. The memory stays in use until idle(). If
  // the transport that lent them still exists, call this on its thread.
  void Retire();
  // True if no payload is being received or sent.
  bool idle() const;
  // Frees the memory for pushes. Requires: retired and idle. Afterwards the shard can only be
  // continued or saved.
  void DropGradients() { pushes_.FreeMemory(); }
  // Returns a snapshot of a version that the shard holds, or null if it does not hold it. Requires:
  // retired and idle. The content equals a snapshot taken when every chunk had that version.
  // Nothing is copied, so the shard must be neither continued nor destroyed while the snapshot is
  // read.
  std::shared_ptr<const ShardSnapshot> SnapshotOfHeld(uint64_t id, int64_t version);

  // True if every chunk contains all steps of the job.
  bool finished() const { return started_ && versions_.lowest() >= total_steps_; }

  void set_output(ShardOutput* output);
  const v1::JobPlan& plan() const { return *plan_; }
  ShardIndex shard() const { return shard_; }
  int chunk_count() const { return store_->size(); }
  NumbersBelow<LocalChunk> chunks() const { return store_->chunks(); }
  // The memory that values and sums are sent from and that pushes are received into. The state that
  // a replica receives also goes to other memory.
  std::array<absl::Span<std::byte>, 3> memory() const {
    return {store_->outgoing(), pushes_.store().memory(), pushes_.store().sums()};
  }
  // The lowest version of the chunks with gradients; INT64_MAX if there are none.
  int64_t lowest_version() const { return versions_.lowest(); }
  // The versions that every chunk with gradients can provide; all versions if there are no such
  // chunks. Under BSP there is at least one, except for a replica that is not filled yet.
  HeldVersions held_versions() const;
  // The number of pushes that were dropped because their step was closed without them.
  int64_t late_pushes() const { return gate_->late_pushes(); }
  // The current values of a chunk, for tests and benchmarks.
  absl::Span<const float> values(LocalChunk index) const {
    return store_->Values(index, versions_.current(index));
  }

 private:
  ParameterShard(std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
                 std::unique_ptr<ChunkStore> store, std::unique_ptr<GradientStore> gradients);
  bool Holds(int64_t version) const;

  std::optional<LocalChunk> Find(const WireHeader& header) const {
    return store_->Find(ChunkId(header.chunk));
  }
  LocalChunk Placed(const WireHeader& header) const;
  RefusalReason AnswerFetch(LocalChunk index, Rank rank, int64_t step);
  void SendCurrent(LocalChunk index, Rank rank);
  void GiveUpPush(LocalChunk index, Rank rank);

  bool IsReady(LocalChunk index, const ChunkUpdate& update) const;
  bool SomeAreHeldUp() const;
  int FreeBuffer(LocalChunk index) const;
  void UpdateIfReady(LocalChunk index);
  void UpdateAllReady();
  void Update(LocalChunk index, const ChunkUpdate& update);
  void Apply(LocalChunk index, const ChunkUpdate& update, const ChunkStore::Version& next);
  void Skip(LocalChunk index, const ChunkStore::Version& next);
  bool SkipsNext(LocalChunk index, const ChunkUpdate& update);
  ShardOptimizer::Update TermsOf(LocalChunk index, const ChunkUpdate& update,
                                 const ChunkStore::Version& next) const;

  // Judged steps.
  void SumIfReady(LocalChunk index);
  void StepJudged(int64_t step, bool skipped, int64_t skips_in_row) override;
  void MeasureDirections(absl::Span<double> squares) override;
  void GoOn() override { UpdateAllReady(); }

  // Replicas.
  ReplicaFeed::Sum SumToForward(LocalChunk index, const ChunkUpdate& update) const;
  void StateArrived(const WireHeader& header);

  const std::shared_ptr<const v1::JobPlan> plan_;
  const ShardIndex shard_;
  const bool is_replica_;
  std::unique_ptr<ChunkStore> store_;  // Continue() moves it to the next shard
  ShardOutput* output_ = nullptr;
  const ChunkTreatments chunks_;
  const std::unique_ptr<Gate> gate_;
  ShardVersions versions_;
  ShardPushes pushes_;
  ShardOptimizer optimizer_;
  ShardAnswers answers_;
  ShardSnapshots snapshots_;
  ShardReplication replication_;
  NumberedVector<LocalChunk, char> updating_;  // UpdateIfReady() is running for the chunk
  bool started_ = false;
  bool retired_ = false;
  int64_t total_steps_ = 0;
  std::unique_ptr<StepAgreement> agreement_;  // only if steps are judged
  std::unique_ptr<ClosingExchange> closing_;  // only with backup workers
};

}  // namespace muster
