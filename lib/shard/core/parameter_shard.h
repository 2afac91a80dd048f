// The chunks of one job that one thread owns: values, optimizer slots, and the handling of pushes.
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
#include "lib/shard/agreement/closing_exchange.h"
#include "lib/shard/agreement/step_agreement.h"
#include "lib/shard/chunks/chunk_store.h"
#include "lib/shard/chunks/loss_scale.h"
#include "lib/shard/chunks/memory_budget.h"
#include "lib/shard/chunks/payload_tickets.h"
#include "lib/shard/core/gradient_store.h"
#include "lib/shard/core/snapshot_queue.h"
#include "lib/shard/gate/gate.h"
#include "lib/shard/replication/replica_agreement.h"
#include "lib/shard/replication/replica_feed.h"
#include "lib/shard/replication/replica_filling.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A shard's values and slots at one version. Keeps its memory alive. The content does not change
// until SnapshotWritten() is called.
struct ShardSnapshot {
  struct Piece {
    ChunkId chunk;
    int slot;  // 0: values
    absl::Span<const float> elements;
  };
  ShardIndex shard{};
  uint64_t id = 0;  // 0: periodic or final; else the request's id
  int64_t step = 0;
  v1::UpdateState update_state;
  std::vector<Piece> pieces;
  std::shared_ptr<const Slab> memory;
};

// The outcome of a judged step, see StepsAreJudged().
struct StepVerdict {
  int64_t step = 0;
  bool skipped = false;      // the gradient was not finite
  int64_t skips_in_row = 0;  // including this step
  float loss_scale = 0;      // for the next step; 0: the job has none
};

// The services of the thread that runs a shard. Called from inside the shard's methods.
class ShardOutput {
 public:
  virtual ~ShardOutput() = default;
  // Sends to the worker of that rank, like Transport::Send. Without a connection, `done` gets an
  // error at once.
  virtual void SendTo(Rank rank, const WireHeader& header, absl::Span<const std::byte> payload,
                      Transport::SendDone done) = 0;
  // Sends to another shard of the job, in the same way.
  virtual void SendToShard(ShardIndex shard, const WireHeader& header,
                           absl::Span<const std::byte> payload, Transport::SendDone done) = 0;
  // Sends to the shard's replica, in the same way.
  virtual void SendToReplica(const WireHeader& /*header*/, absl::Span<const std::byte> /*payload*/,
                             Transport::SendDone done) {
    done(absl::UnavailableError("the shard has no replica"));
  }
  // Called for every judged step, with the same arguments on every shard.
  virtual void StepJudged(const StepVerdict& verdict) = 0;
  // Called around every optimizer update of `elements` elements. UpdateBegins() decides how the
  // values are stored.
  virtual kernels::OutgoingStores UpdateBegins(int64_t elements) = 0;
  virtual void UpdateEnds(double sum_of_squares) = 0;
  // Called for every push that is an update of its own (ssp, asp), see StalenessGate.
  virtual void StalePushApplied(int64_t /*staleness*/) {}
  // Called when every chunk is held at the snapshot's step. The receiver must call
  // SnapshotWritten() later.
  virtual void SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) = 0;
  virtual void SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                                const std::string& message) = 0;
};

// Every chunk has two versions of values and slots. An update reads the current version and writes
// the next one over the previous one, or into a spare values buffer that is not being sent
// (ChunkStore). The gate decides which pushes make an update and when ranks are answered; each
// consistency mode has one gate. Gradients are summed in rank order whatever their order of
// arrival, so a BSP run repeats to the bit. With logical workers they are summed along the job's
// sum tree (lib/plan/sum_tree.h), so the sum has the same bits for any number of ranks.
//
// If steps are judged (StepsAreJudged), a chunk's gradients are summed as soon as the gate has an
// update. The sum is applied, or skipped everywhere, when the shards have agreed on the step
// (StepAgreement). With backup workers the shards also agree on the ranks that contribute
// (ClosingExchange).
//
// A shard with a replica (shard_replica.h) sums a chunk's gradients first and sends the sum to the
// replica (ReplicaFeed). It makes no version before all replicas hold the previous one
// (ReplicaAgreement). The replica is a ParameterShard too, created with the plan of
// PlanOfReplica(). Its only rank is the shard. It answers only with the version that it holds, and
// gets the verdict of a judged step with each sum.
//
// Frozen parameters are fetched and never pushed: they have every version.
//
// A job with a program (model.external) has no learning rate and no shares of the batch that the
// shard knows. Each push names the learning rate of its parameter and the weight of its rank, or
// says that the rank has no gradient. docs/protocol.md has the rules.
//
// Thread-compatible. Time is an argument. No I/O, no lock. After Create() only snapshots allocate.
class ParameterShard : private JudgedShard {
 public:
  using Clock = std::chrono::steady_clock;
  // The write of a snapshot delays updates for at most this time. Workers wait twice as long for
  // the values of a step (limits::kAnswerWaitMax).
  static constexpr std::chrono::minutes kWriteHoldsUpMax{5};

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
  void Initialize(LocalChunk index);
  // Begins a restore, also after one that was abandoned.
  void BeginRestore();
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
  // Each rank has at most one answer to a fetch per chunk under way. Of further fetches in the
  // meantime only the last is answered.
  RefusalReason Fetch(const WireHeader& header);
  // Records that the payload of a placed push will not arrive. The rank may push it again.
  void PushLost(const WireHeader& header);
  // Gives up this rank's payloads under way. Lent payloads stay.
  void RankLost(Rank rank);

  // ---- messages of other shards

  // Handle reports and their answers. A place of PlaceReport() is followed by ReportArrived() or
  // ReportLost(). An empty place: the message is not wanted, also because the shard has no such
  // part.
  //   kSquares, kNorms  at shard 0: of shard `header.rank`, see StepAgreement
  //   kTrust            from shard 0, see StepAgreement
  //   kArrived          at shard 0: the ranks that have arrived at shard `header.rank`
  //   kState            at a replica: of its shard, see ReplicaFilling
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
  void ReplicaConnected();
  // ReplicaHolds(): the replica reports that it holds version `header.step` of all chunks.
  // ReplicasHold(): another shard reports this for its own replica, or shard 0 for all.
  void ReplicaHolds(const WireHeader& header);
  void ReplicasHold(const WireHeader& header);
  // The version that the replica is known to hold.
  int64_t replica_version() const { return replica_version_; }

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
  void DeferCopies();
  // Copies one chunk that a snapshot waits for. Returns false if there is none. Called when the
  // thread is otherwise idle, and regularly if it never is. Chunks without further updates are
  // copied only here.
  bool CopyOne();
  // Stops updates and answers, and returns lent payloads. The memory stays in use until idle(). If
  // the transport that lent them still exists, call this on its thread.
  void Retire();
  // True if no payload is being received or sent.
  bool idle() const;
  // Frees the memory for pushes. Requires: retired and idle. Afterwards the shard can only be
  // continued or saved.
  void DropGradients() { pushed_.reset(); }
  // Returns a snapshot of a version that the shard holds, or null if it does not hold it. Requires:
  // retired and idle. The content equals a snapshot taken when every chunk had that version.
  // Nothing is copied, so the shard must be neither continued nor destroyed while the snapshot is
  // read.
  std::shared_ptr<const ShardSnapshot> SnapshotOfHeld(uint64_t id, int64_t version);

  // True if every chunk contains all steps of the job.
  bool finished() const { return started_ && lowest_ >= total_steps_; }

  void set_output(ShardOutput* output) { output_ = output; }
  const v1::JobPlan& plan() const { return *plan_; }
  ShardIndex shard() const { return shard_; }
  int chunk_count() const { return store_->size(); }
  NumbersBelow<LocalChunk> chunks() const { return store_->chunks(); }
  // The memory that values and sums are sent from and that pushes are received into. The state that
  // a replica receives also goes to other memory.
  std::array<absl::Span<std::byte>, 3> memory() const {
    return {store_->outgoing(), pushed_->memory(), pushed_->sums()};
  }
  // The lowest version of the chunks with gradients; INT64_MAX if there are none.
  int64_t lowest_version() const { return lowest_; }
  // The versions that every chunk with gradients can provide; all versions if there are no such
  // chunks. Under BSP there is at least one, except for a replica that is not filled yet.
  struct HeldVersions {
    int64_t oldest = 0;
    int64_t newest = std::numeric_limits<int64_t>::max();
  };
  HeldVersions held_versions() const;
  // The number of pushes that were dropped because their step was closed without them.
  int64_t late_pushes() const { return gate_->late_pushes(); }
  // The current values of a chunk, for tests and benchmarks.
  absl::Span<const float> values(LocalChunk index) const;

 private:
  using Tickets = PayloadTickets<ParameterShard>;

  // The outgoing form of one version.
  struct ValueBuffer {
    int sending = 0;       // payloads under way from it
    bool encoded = false;  // up to date in the wire format
  };
  struct Chunk {
    bool trained = true;    // has gradients: not frozen
    TrainedChunk number{};  // only of a trained chunk
    int parameter = 0;
    double learning_rate_factor = 1;
    double weight_decay = 0;
    double statistic_momentum = 0;     // > 0: a statistic, not trained by the optimizer
    ChunkStore::Version current;       // the buffers of the current version
    ChunkStore::Version previous;      // the buffers of the version before
    std::vector<ValueBuffer> buffers;  // by values buffer
    bool updating = false;             // UpdateIfReady() is running for it
    bool summed = false;  // the sum is in SumPlace(): steps are judged, or there is a replica
    double sum_of_squares = 0;
    // bsp, with a program: what the pushes of the current step must name; nullopt: none is here.
    std::optional<double> learning_rate;
    std::unique_ptr<ChunkEncoder> encoder;  // of values sent in 16 bits
  };
  // A gradient that has arrived or is under way.
  struct Push {
    Tickets::Ticket receiving;
    kernels::Gradient gradient;
    PayloadLease lease;
    double sum_of_squares = 0;  // ssp, asp: of the rank's last push
    bool has_gradient = true;   // else the rank has none in this step
    // Only with a program.
    double learning_rate = 0;
    double weight = 1;
    // Only at a replica: how its shard applied the sum.
    bool skipped = false;
    double factor = 1;
    double trust_ratio = 1;
  };
  // The fetches of a rank for one chunk.
  struct Fetching {
    bool answering = false;
    int64_t waiting = -1;  // the step of the next fetch to answer; -1: none
  };
  // The state of a version besides values and slots.
  struct VersionState {
    LossScale loss_scale;
    int64_t skipped = 0;  // skipped steps before it
  };

  ParameterShard(std::shared_ptr<const v1::JobPlan> plan, ShardIndex shard,
                 std::unique_ptr<ChunkStore> store, std::unique_ptr<GradientStore> pushed);
  // Takes over the versions of `before`; the store already has its memory. Returns false if
  // `before` does not hold plan_->first_step().
  bool TakeUp(const ParameterShard& before);
  bool Holds(int64_t version) const;
  // Whether the chunk has a held version as the previous one. Requires: Holds(version).
  bool HasAsPrevious(LocalChunk index, int64_t version) const;

  int ranks() const { return plan_->workers_size(); }
  LocalChunk IndexOf(const Chunk& chunk) const { return chunks_.NumberOf(chunk); }
  int64_t VersionOf(const Chunk& chunk) const { return gate_->version(IndexOf(chunk)); }
  Push& PushOf(const Chunk& chunk, Rank rank) { return pushes_(IndexOf(chunk), rank); }
  const Push& PushOf(const Chunk& chunk, Rank rank) const { return pushes_(IndexOf(chunk), rank); }
  Chunk* Find(const WireHeader& header);
  RefusalReason CheckPush(const Chunk& chunk, const WireHeader& header) const;
  RefusalReason TakePush(Chunk& chunk, const WireHeader& header,
                         absl::Span<const std::byte> payload, PayloadLease lease);
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
  const uint8_t* JoinsOfGathered() const;
  double SumGathered(float* out, int64_t elements) const;
  bool HasGradient(const Chunk& chunk, const ChunkUpdate& update) const;
  double MeanFactor(const Chunk& chunk, const ChunkUpdate& update) const;
  double LearningRateFor(const Chunk& chunk, const ChunkUpdate& update) const;
  void KeepSquares(Chunk& chunk, const ChunkUpdate& update, double sum_of_squares);
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

  // Replicas.
  void MakeReplicaFeed();
  bool ReplicasAllow(const Chunk& chunk, const ChunkUpdate& update) const;
  ReplicaFeed::Sum SumToForward(const Chunk& chunk, const ChunkUpdate& update) const;
  void StateArrived(const WireHeader& header);
  void TellHeld();

  // Judged steps.
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
  std::unique_ptr<ChunkStore> store_;  // Continue() moves it to the next shard
  std::unique_ptr<GradientStore> pushed_;
  ShardOutput* output_ = nullptr;
  Tickets tickets_{this};  // outlives the tickets below
  kernels::OptimizerSettings settings_;
  const bool has_program_;  // model.external: pushes name learning rates and weights
  const bool is_replica_;
  const bool averages_;            // local_sgd: sums values instead of applying gradients
  const bool pushes_are_updates_;  // ssp, asp
  // How the gradients of all ranks are added; see kernels::kOpenSumsMax. Empty: in rank order.
  const std::vector<uint8_t> joins_;
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
  // The lowest and the highest version of the chunks with gradients.
  int64_t lowest_ = 0;
  int64_t highest_ = 0;
  int64_t furthest_ = 0;  // one past the last step with a push in a chunk
  int chunks_at_lowest_ = 0;

  // The states of the previous, current and next version of the chunks. The index is version % 3.
  std::array<VersionState, 3> states_;

  std::unique_ptr<StepAgreement> agreement_;  // only if steps are judged
  std::unique_ptr<ClosingExchange> closing_;  // only with backup workers

  std::unique_ptr<ReplicaFeed> feed_;           // only if the shard has a replica
  int64_t replica_version_ = 0;                 // held by the replica
  std::unique_ptr<ReplicaAgreement> replicas_;  // only if some shard has a replica
  std::unique_ptr<ReplicaFilling> filling_;     // only at a replica that starts empty

  SnapshotQueue snapshots_;
  // first call of PassOverSnapshots() since the current snapshot was taken
  std::optional<Clock::time_point> writing_since_;
  v1::UpdateState snapshot_state_;  // of the current snapshot's step
  // Only if copies are deferred: the chunks that have reached the snapshot's step, in this order,
  // and how many of them CopyOne() has seen.
  std::vector<LocalChunk> copies_;
  size_t copies_seen_ = 0;
};

}  // namespace muster
