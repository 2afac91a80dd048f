// The chunks of one job that one thread owns: values, optimizer slots, and what becomes of a push.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/codec/codec.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/chunks/loss_scale.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/chunks/payload_tickets.h"
#include "lib/shard/core/closing_exchange.h"
#include "lib/shard/core/gradient_store.h"
#include "lib/shard/core/snapshot_queue.h"
#include "lib/shard/core/step_agreement.h"
#include "lib/shard/gate/gate.h"
#include "lib/shard/replication/backup_agreement.h"
#include "lib/shard/replication/backup_feed.h"
#include "lib/shard/replication/backup_filling.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A shard's values and slots at one version. Does not change until the shard hears
// SnapshotWritten(); keeps its memory.
struct ShardSnapshot {
  struct Piece {
    ChunkId chunk;
    int slot;  // 0: values
    absl::Span<const float> elements;
  };
  ShardIndex shard{};
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
  virtual void SendTo(Rank rank, const WireHeader& header, absl::Span<const std::byte> payload,
                      Transport::SendDone done) = 0;
  // Likewise to another shard of the job.
  virtual void SendToShard(ShardIndex shard, const WireHeader& header,
                           absl::Span<const std::byte> payload, Transport::SendDone done) = 0;
  // Likewise to its backup.
  virtual void SendToBackup(const WireHeader& /*header*/, absl::Span<const std::byte> /*payload*/,
                            Transport::SendDone done) {
    done(absl::UnavailableError("there is none"));
  }
  // Of every judged step, the same on every shard.
  virtual void StepJudged(const StepVerdict& verdict) = 0;
  // Around every optimizer update, of so many elements. Says how values are to be stored.
  virtual kernels::OutgoingStores UpdateBegins(int64_t elements) = 0;
  virtual void UpdateEnds(double sum_of_squares) = 0;
  // Of every push that is an update of its own (ssp, asp): see StalenessGate.
  virtual void StalePushApplied(int64_t /*staleness*/) {}
  // Every chunk is held at the snapshot's step. SnapshotWritten() is to follow.
  virtual void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) = 0;
  virtual void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                                const std::string& message) = 0;
};

// Every chunk has two versions of values and slots. An update reads the current one and writes the
// next over the one before, or where else no value is being sent from (ChunkStore). Which pushes
// make an update, and who is answered when, is the gate's to say: one class per consistency mode.
// The gradients of an update are summed in rank order whatever their order of arrival, so under BSP
// a run repeats to the bit.
//
// Where steps are judged (StepsAreJudged), a chunk's gradients are summed as soon as the gate has
// an update, and applied, or skipped everywhere, when the shards have agreed on the step
// (StepAgreement). With backup workers they also agree on whose pushes it is made of
// (ClosingExchange).
//
// A shard that has a backup (shard_backup.h) sums a chunk's gradients first, sends the sum there
// (BackupFeed) and makes no version before all backups hold the one before (BackupAgreement). The
// backup is a ParameterShard, too, created by PlanOfBackup(): its only rank is the shard, it
// answers nothing but which version it holds, and what a judgement was it is told with each sum.
//
// Parameters that are frozen are fetched and never pushed: they have every version.
//
// Thread-compatible. Time comes in; no I/O, no lock; after Create() nothing is allocated but for
// snapshots.
class ParameterShard : private JudgedShard {
 public:
  using Clock = std::chrono::steady_clock;
  // A write of a snapshot that takes longer holds no update up any more. Workers wait for the
  // values of a step for twice as long (limits::kAnswerWaitMax).
  static constexpr std::chrono::minutes kWriteHoldsUpMax{5};

  // What Create() will allocate. The plan is good (CheckPlan).
  static int64_t BytesNeeded(const v1::JobPlan& plan, ShardIndex shard) {
    return ChunkStore::BytesNeeded(plan, shard) + GradientBytesNeeded(plan, shard);
  }
  // Of it, what depends on the number of workers.
  static int64_t GradientBytesNeeded(const v1::JobPlan& plan, ShardIndex shard) {
    return GradientStore::BytesNeeded(plan, shard);
  }

  // Allocates; values are zero until Initialize() or RestoreSlice(). The plan is good. `gradients`:
  // the reservation of what depends on the number of workers, where that is apart from the rest.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Create(
      std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
      std::shared_ptr<MemoryBudget::Reservation> reservation,
      std::shared_ptr<MemoryBudget::Reservation> gradients = nullptr);
  // Goes on at plan->first_step() with what `before` holds of it, a shard of the same number in an
  // earlier generation of the job, or its backup, that is retired and idle. Only the gradients'
  // memory is allocated anew. FAILED_PRECONDITION (reason "SHARDS_NOT_HELD"): it is still in use,
  // has other chunks, or not that version.
  static absl::StatusOr<std::unique_ptr<ParameterShard>> Continue(
      std::shared_ptr<const v1::JobPlan> plan, std::unique_ptr<ParameterShard> before,
      std::shared_ptr<MemoryBudget::Reservation> gradients);
  ParameterShard(const ParameterShard&) = delete;
  ParameterShard& operator=(const ParameterShard&) = delete;

  // ---- before the first message, on any one thread

  // Fills a chunk with initial values.
  void Initialize(LocalChunk index);
  // Begins a restore, also after one that broke off.
  void BeginRestore();
  // One slice of the checkpoint; those of a chunk's slot come in order. DATA_LOSS on a checksum
  // mismatch, INVALID_ARGUMENT for a slice that does not belong here.
  absl::Status RestoreSlice(const v1::ShardSlice& slice);
  // DATA_LOSS naming the first chunk that is not complete.
  absl::Status FinishRestore() const { return store_->FinishRestore(); }

  // ---- messages; generation and rank of a header are already checked against this plan

  // Where a push wants its payload, or why it wants none. Only names memory.
  struct Placement {
    absl::Span<std::byte> memory;  // empty: drop the payload
    bool in_place = false;         // it may stay with its sender
    RefusalReason refusal = RefusalReason::kNone;
    bool repeat = false;  // taken before
    bool late = false;    // its step was closed without it
  };
  Placement PlacePush(const WireHeader& header);
  // The payload is where PlacePush() wanted it, or stays with its sender while the shard keeps
  // `lease`: until the update that it is for, or the sum where steps are judged. May update the
  // chunk and send its new value. kBadPayload: not what an encoder makes; the rank may push again.
  RefusalReason PushArrived(const WireHeader& header, absl::Span<const std::byte> payload,
                            PayloadLease lease);
  // After a Placement that is `repeat` or `late`: sends the value if it does not come anyhow.
  void AnswerRepeat(const WireHeader& header);
  // Answers with version `header.step`, or as the gate says, now or when it is there. Of a chunk
  // one answer at a time is under way to a rank; of what it asks for meanwhile the last is
  // answered.
  RefusalReason Fetch(const WireHeader& header);
  // The payload of a push that PlacePush() wanted will not arrive: the rank may push it again.
  void PushLost(const WireHeader& header);
  // Payloads of this rank that are under way will not arrive; those lent stay.
  void RankLost(Rank rank);

  // Squares and norms of shard `header.rank` to shard 0, trust ratios from it (kSquares, kNorms,
  // kTrust): where they want to be placed, empty where they are not wanted; then that they are
  // there, or will not come.
  absl::Span<std::byte> PlaceScalars(const WireHeader& header);
  void ScalarsArrived(const WireHeader& header);
  void ScalarsLost(const WireHeader& header);
  // Likewise what shard `header.rank` says about whose pushes have arrived, to shard 0.
  absl::Span<std::byte> PlaceRanks(const WireHeader& header);
  void RanksArrived(const WireHeader& header);
  void RanksLost(const WireHeader& header);
  // A message of this shard that is under way will not arrive.
  void ShardLost(ShardIndex shard);
  // From shard 0. kWrongStep: not awaited.
  RefusalReason VerdictArrived(const WireHeader& header);
  // From shard 0: the step is made of `ranks`. kWrongStep: not awaited.
  RefusalReason StepClosed(const WireHeader& header, absl::Span<const std::byte> ranks);

  // ---- backups

  // Of a shard that has one: it is connected. Sends it what it lacks.
  void BackupConnected();
  // Its backup says that it holds version `header.step` of all chunks; another shard says so of its
  // own, or shard 0 of all.
  void BackupHolds(const WireHeader& header);
  void BackupsHold(const WireHeader& header);
  // What the backup is known to hold.
  int64_t backup_version() const { return backup_version_; }
  // Of a backup: what its shard sends of its state (kState), as PlaceScalars() and so on.
  absl::Span<std::byte> PlaceState(const WireHeader& header);
  void StateArrived(const WireHeader& header);
  void StateLost(const WireHeader& header);

  // ---- life

  // From here on there are updates. Idempotent.
  void Start(int64_t total_steps);
  // Takes snapshot `id` > 0 when every chunk is at `step`; declines if one is beyond or never will
  // be there. A known id is ignored, a new one supersedes one that still waits.
  void TakeSnapshot(uint64_t id, int64_t step);
  // The snapshot that was taken is not needed any more: what waited for its memory goes on.
  void SnapshotWritten(uint64_t id, int64_t step);
  // To be called in every turn of its thread. Once a snapshot that was taken has been written for
  // kWriteHoldsUpMax, the next ones are passed over (declined, SNAPSHOT_MISSED) that keep a chunk
  // from an update. `clock` is asked once for each, and again where one waits.
  void PassOverSnapshots(absl::FunctionRef<Clock::time_point()> clock);
  // From here on a chunk is copied for a snapshot by CopyOne(), or when its next update comes, and
  // not as soon as it is there: workers wait for the values of the chunks behind it.
  void DeferCopies();
  // Copies a chunk that a snapshot waits for; false: none is there. To be called when there is
  // nothing else to do, and now and then where there always is: nobody else copies what is not
  // updated any more.
  bool CopyOne();
  // No more updates or answers; gives back what is lent. The memory is still in use until idle().
  // On the thread of the transport that lent it, while there is one.
  void Retire();
  // No payload is being received and none sent.
  bool idle() const;
  // Of a retired shard that is idle: gives back what was pushed. All that it is good for then is to
  // be continued.
  void DropGradients() { pushed_.reset(); }
  // Likewise: a snapshot of a version that it holds, the same as one that was taken when every
  // chunk was there; null of any other. Nothing is copied: the shard must be neither continued nor
  // destroyed while that is read.
  std::shared_ptr<const ShardSnapshot> SnapshotOfHeld(uint64_t id, int64_t version);

  // All steps are part of all chunks.
  bool finished() const { return started_ && lowest_ >= total_steps_; }

  void set_output(ShardOutput* output) { output_ = output; }
  const v1::JobPlan& plan() const { return *plan_; }
  ShardIndex shard() const { return shard_; }
  int chunk_count() const { return store_->size(); }
  NumbersBelow<LocalChunk> chunks() const { return store_->chunks(); }
  // All that payloads are sent from and received into.
  std::array<absl::Span<std::byte>, 3> memory() const {
    return {store_->outgoing(), pushed_->memory(), pushed_->sums()};
  }
  // Lowest version of the chunks with gradients; INT64_MAX without any.
  int64_t lowest_version() const { return lowest_; }
  // The versions that every chunk with gradients can be had at; all of them without any. Under BSP
  // there is one at least, but none of a backup that has not yet got everything.
  struct HeldVersions {
    int64_t oldest = 0;
    int64_t newest = std::numeric_limits<int64_t>::max();
  };
  HeldVersions held_versions() const;
  // Dropped because their step was closed without them.
  int64_t late_pushes() const { return gate_->late_pushes(); }
  // Current value of a chunk, for tests and benchmarks.
  absl::Span<const float> values(LocalChunk index) const;

 private:
  using Tickets = PayloadTickets<ParameterShard>;

  // Of what goes out of a version.
  struct ValueBuffer {
    int sending = 0;       // payloads under way from it
    bool encoded = false;  // up to date
  };
  struct Chunk {
    bool trained = true;    // has gradients: not frozen
    TrainedChunk number{};  // of one that is trained
    int parameter = 0;
    double learning_rate_factor = 1;
    bool weight_decay = false;
    double statistic_momentum = 0;     // > 0: a statistic, not trained by the optimizer
    ChunkStore::Version current;       // where it is
    ChunkStore::Version previous;      // the one before
    std::vector<ValueBuffer> buffers;  // of the values of these and older ones
    bool updating = false;             // who finds it so need not do anything
    bool summed = false;               // in SumPlace(): where steps are judged or there is a backup
    double sum_of_squares = 0;
    std::unique_ptr<ChunkEncoder> encoder;  // of values that go out in 16 bits
  };
  // A gradient that is in or under way.
  struct Push {
    Tickets::Ticket receiving;
    kernels::Gradient gradient;
    PayloadLease lease;
    double sum_of_squares = 0;  // ssp, asp: of the rank's last one
    // Of a backup: what its shard made of the sum.
    bool skipped = false;
    double factor = 1;
    double trust_ratio = 1;
  };
  // What a rank asked for of a chunk.
  struct Fetching {
    bool answering = false;
    int64_t waiting = -1;  // the version to be answered with next; -1: none
  };
  // What belongs to a version beside values and slots.
  struct VersionState {
    LossScale loss_scale;
    int64_t skipped = 0;  // steps before it that changed nothing
  };

  ParameterShard(std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
                 std::unique_ptr<ChunkStore> store, std::unique_ptr<GradientStore> pushed);
  // Takes up chunks, which its own are, where `before` had them. False: not all had this version.
  bool TakeUp(const ParameterShard& before);
  bool Holds(int64_t version) const;
  // Of a version that it holds: whether the chunk has it as the one before.
  bool HasAsPrevious(LocalChunk index, int64_t version) const;
  // And what closes the steps, where something does.
  void MakeGate(const ShardAssembly::Send& send);

  int ranks() const { return plan_->workers_size(); }
  LocalChunk IndexOf(const Chunk& chunk) const { return chunks_.NumberOf(chunk); }
  int64_t VersionOf(const Chunk& chunk) const { return gate_->version(IndexOf(chunk)); }
  Push& PushOf(const Chunk& chunk, Rank rank) { return pushes_(IndexOf(chunk), rank); }
  Chunk* Find(const WireHeader& header);
  bool TakeGradient(const Chunk& chunk, Rank rank, absl::Span<const std::byte> payload,
                    PayloadLease lease);
  void SendParams(Chunk& chunk, const ChunkStore::Version& version, Rank rank, int64_t step,
                  bool fetched = false);
  RefusalReason AnswerFetch(Chunk& chunk, Rank rank, int64_t step);
  void ValuesSent(LocalChunk index, int buffer, Rank fetcher);
  void FetchAnswered(LocalChunk index, Rank rank);
  void GiveUpPush(LocalChunk index, Rank rank);
  double SquaresFor(const Chunk& chunk, Rank rank);
  absl::Span<const std::byte> WireValues(Chunk& chunk, const ChunkStore::Version& version);

  bool IsReady(const Chunk& chunk, const ChunkUpdate& update) const;
  bool MayUpdate(const Chunk& chunk, const ChunkUpdate& update) const;
  bool IsHeldUp(const Chunk& chunk) const;
  static int FreeBuffer(const Chunk& chunk);
  void UpdateIfReady(Chunk& chunk);
  void UpdateAllReady();
  void Update(Chunk& chunk, const ChunkUpdate& update);
  void Apply(Chunk& chunk, const ChunkUpdate& update, const ChunkStore::Version& next);
  void GatherGradients(const Chunk& chunk, const ChunkUpdate& update);
  static double PartOfNorm(const Chunk& chunk, double sum_of_squares);
  double ApplyToStatistic(const Chunk& chunk, const ChunkUpdate& update,
                          const ChunkStore::Version& next);
  double ApplyOptimizer(Chunk& chunk, const ChunkUpdate& update, const ChunkStore::Version& next,
                        kernels::OutgoingStores stores);
  kernels::OptimizerBuffers BuffersOf(const Chunk& chunk, const ChunkStore::Version& next) const;
  kernels::OptimizerSettings SettingsFor(const Chunk& chunk) const;
  kernels::GradientClip ClipFor(const Chunk& chunk, const ChunkUpdate& update) const;
  int64_t UpdatesBefore(const Chunk& chunk);
  void Skip(Chunk& chunk, const ChunkStore::Version& next);
  bool SkipsNext(const Chunk& chunk, const ChunkUpdate& update);
  absl::Span<float> SumPlace(const Chunk& chunk, const ChunkUpdate& update) const;
  double Sum(Chunk& chunk, const ChunkUpdate& update);
  void ReturnLeases(const Chunk& chunk, const ChunkUpdate& update);
  void CountVersion(const Chunk& chunk, int64_t before);
  VersionState& StateOfVersion(int64_t version) { return states_[version % states_.size()]; }
  absl::Status RestoreState(const v1::UpdateState& state);
  v1::UpdateState UpdateStateAt(int64_t version);
  VersionState& AdvanceState(int64_t step, bool skipped);

  // Of backups.
  void MakeBackupFeed();
  bool BackupsAllow(const Chunk& chunk, const ChunkUpdate& update) const;
  BackupFeed::Sum SumToForward(const Chunk& chunk, const ChunkUpdate& update) const;
  void TellHeld();

  // Of judged steps.
  void SumIfReady(Chunk& chunk);
  void StepJudged(int64_t step, bool skipped, int64_t skips_in_row) override;
  void MeasureDirections(absl::Span<double> squares) override;
  void GoOn() override { UpdateAllReady(); }

  void BeginSnapshot();
  bool IsWanted(const Chunk& chunk) const;
  bool Hold(const Chunk& chunk);
  void SnapshotIsTaken();
  std::shared_ptr<const ShardSnapshot> MakeSnapshot(
      const SnapshotQueue::Request& request, const v1::UpdateState& state,
      absl::FunctionRef<ChunkStore::Version(LocalChunk index)> place);

  const std::shared_ptr<const v1::JobPlan> plan_;
  const ShardIndex shard_;
  std::unique_ptr<ChunkStore> store_;  // given away to who continues this
  std::unique_ptr<GradientStore> pushed_;
  ShardOutput* output_ = nullptr;
  Tickets tickets_{this};  // outlives who holds them below
  kernels::OptimizerSettings settings_;
  const bool is_backup_;
  const bool averages_;            // local_sgd: sums values instead of applying gradients
  const bool pushes_are_updates_;  // ssp, asp
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedTable<LocalChunk, Rank, Push> pushes_;
  NumberedTable<LocalChunk, Rank, Fetching> fetching_;
  std::vector<kernels::Gradient> gradients_;  // of the chunk being summed or updated
  int gathered_ = 0;                          // of gradients_
  int trained_chunks_ = 0;
  std::unique_ptr<Gate> gate_;
  bool started_ = false;
  bool retired_ = false;
  bool defers_copies_ = false;
  int64_t total_steps_ = 0;
  // Of the chunks with gradients.
  int64_t lowest_ = 0;
  int64_t highest_ = 0;
  int64_t furthest_ = 0;  // step one past the last push that is part of a chunk
  int chunks_at_lowest_ = 0;

  // Of the versions that a chunk may have, the one before and the next.
  std::array<VersionState, 3> states_;

  std::unique_ptr<StepAgreement> agreement_;  // where steps are judged
  std::unique_ptr<ClosingExchange> closing_;  // with backup workers

  std::unique_ptr<BackupFeed> feed_;          // of a shard that has a backup
  int64_t backup_version_ = 0;                // held there
  std::unique_ptr<BackupAgreement> backups_;  // where some shard has one
  std::unique_ptr<BackupFilling> filling_;    // of a backup that begins with nothing

  SnapshotQueue snapshots_;
  std::optional<Clock::time_point> writing_since_;  // the current one; as far as anybody has looked
  v1::UpdateState snapshot_state_;                  // of the current one's step
  // Where copies are deferred: the chunks that have come to that step, in this order, and how many
  // of them were looked at since.
  std::vector<LocalChunk> copies_;
  size_t copies_seen_ = 0;
};

}  // namespace muster
