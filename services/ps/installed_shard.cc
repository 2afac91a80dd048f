#include "services/ps/installed_shard.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/shard/replication/shard_replica.h"

namespace muster {
namespace {

std::vector<std::string> WorkersOf(const v1::JobPlan& plan) {
  std::vector<std::string> workers;
  for (const v1::PlanWorker& worker : plan.workers()) workers.push_back(worker.member());
  return workers;
}

// Returns the number of ranks that push every step, or 0 if steps wait for no rank.
int RanksAwaited(const v1::JobPlan& plan) {
  const v1::SyncMode mode = plan.spec().sync().mode();
  return mode == v1::SSP || mode == v1::ASP ? 0 : plan.workers_size();
}

absl::Status NotConnected(const v1::JobPlan& plan, absl::string_view what, int number,
                          absl::string_view member) {
  return absl::UnavailableError(
      absl::StrCat(plan.job(), ": ", what, " ", number, " on ", member, " is not connected"));
}

}  // namespace

InstalledShard::InstalledShard(const Environment& environment,
                               std::unique_ptr<ParameterShard> shard, ShardListener* listener,
                               ShardProgress* progress, Registrations registrations,
                               JobLinks* links)
    : environment_(environment),
      shard_(std::move(shard)),
      listener_(listener),
      recorder_(listener->RecorderOf(shard_->shard())),
      progress_(progress),
      registrations_(std::move(registrations)),
      links_(links),
      workers_(shard_->plan().workers_size(), PeerId::kNone),
      shards_(shard_->plan().shards_size(), PeerId::kNone),
      counts_(environment.metrics->AddShard(shard_->plan().job(), WorkersOf(shard_->plan()))),
      gate_wait_(RanksAwaited(shard_->plan())),
      gathering_(shard_->plan().chunks_size(), -1) {
  shard_->set_output(this);
  PublishVersion();
}

// The links are told first, so that no message is routed here any more. The registrations end
// before the listener gets the shard, because the listener may free the memory at once or pass it
// to the next generation.
InstalledShard::~InstalledShard() {
  links_->ShardDestroyed(this);
  registrations_.clear();
  shard_->set_output(nullptr);
  listener_->ShardReleased(std::move(shard_));
}

void InstalledShard::Retire() {
  retired_ = true;
  shard_->Retire();
}

void InstalledShard::CountPush(const WireHeader& header, size_t bytes) {
  counts_->pushes.Add(1);
  counts_->push_bytes.Add(static_cast<int64_t>(bytes));
  if (tracing()) TraceArrival(header);
  // One chunk stands for the step, so the measurement restarts when a lower chunk number appears.
  if (header.chunk > gate_chunk_ || !gate_wait_.measures()) return;
  if (header.chunk < gate_chunk_) {
    gate_chunk_ = header.chunk;
    gate_wait_ = GateWait(RanksAwaited(plan()));
  }
  const GateWait::Clock::duration wait =
      gate_wait_.Arrived(static_cast<int64_t>(header.step), GateWait::Clock::now());
  counts_->gate_wait[header.rank].Add(std::chrono::nanoseconds(wait).count());
}

InstalledShard::PushSpan::PushSpan(InstalledShard* shard, const WireHeader& header)
    : shard_(shard),
      span_(shard->recorder_.trace, shard->recorder_.track, "push",
            {{{"step", static_cast<int64_t>(header.step)},
              {"chunk", static_cast<int64_t>(header.chunk)},
              {"rank", static_cast<int64_t>(header.rank)}}}) {
  shard_->pushed_step_ = static_cast<int64_t>(header.step);
}

// The trace shows a chunk as gathered from its first gradient of a step to the first answer.
void InstalledShard::TraceArrival(const WireHeader& header) {
  const auto step = static_cast<int64_t>(header.step);
  const TraceArguments arguments = {{{"step", step},
                                     {"chunk", static_cast<int64_t>(header.chunk)},
                                     {"rank", static_cast<int64_t>(header.rank)}}};
  if (header.chunk >= gathering_.size()) return;
  int64_t& gathering = gathering_[header.chunk];
  if (step > gathering) {
    gathering = step;
    recorder_.trace->Begin(recorder_.track, "gather", IdOf(header.chunk, step), arguments);
  }
  recorder_.trace->Mark(recorder_.track, "gather", "arrived", IdOf(header.chunk, step), arguments);
}

// The answer to the gradients of step s has version s + 1.
void InstalledShard::TraceAnswer(const WireHeader& header) {
  const int64_t step = static_cast<int64_t>(header.step) - 1;
  if (header.chunk >= gathering_.size() || gathering_[header.chunk] < 0 ||
      gathering_[header.chunk] > step)
    return;
  gathering_[header.chunk] = -1;
  recorder_.trace->End(recorder_.track, "gather", IdOf(header.chunk, step), {{{"step", step}}});
}

std::vector<PeerId>& InstalledShard::SeatsOf(LinkRole role) {
  switch (role) {
    case LinkRole::kWorker:
      return workers_;
    case LinkRole::kShard:
      return shards_;
    case LinkRole::kReplica:
      return replica_;
  }
  return workers_;
}

bool InstalledShard::HasSeat(const Seat& seat) const {
  return seat.role != LinkRole::kReplica && seat.index < SeatsOf(seat.role).size();
}

PeerId InstalledShard::PeerAt(const Seat& seat) const { return SeatsOf(seat.role)[seat.index]; }

void InstalledShard::Take(const Seat& seat, PeerId peer) {
  CHECK(PeerAt(seat) == PeerId::kNone);
  SeatsOf(seat.role)[seat.index] = peer;
  if (seat.role == LinkRole::kWorker && environment_.transport->Describe(peer).shares_memory()) {
    update_timer_.set_values_are_read_in_place();
  }
}

std::optional<InstalledShard::Seat> InstalledShard::Leave(PeerId peer) {
  for (const LinkRole role : {LinkRole::kWorker, LinkRole::kShard, LinkRole::kReplica}) {
    std::vector<PeerId>& seats = SeatsOf(role);
    const auto found = std::ranges::find(seats, peer);
    if (found == seats.end()) continue;
    *found = PeerId::kNone;
    return Seat{role, static_cast<uint32_t>(found - seats.begin())};
  }
  return std::nullopt;
}

void InstalledShard::Lost(const Seat& seat) {
  if (seat.role == LinkRole::kWorker) {
    shard_->RankLost(Rank(seat.index));
  } else if (seat.role == LinkRole::kShard) {
    shard_->ShardLost(ShardIndex(seat.index));
  }
}

std::vector<InstalledShard::Seated> InstalledShard::seated() const {
  std::vector<Seated> seated;
  for (int rank = 0; rank < std::ssize(workers_); ++rank) {
    if (workers_[rank] == PeerId::kNone) continue;
    seated.push_back({workers_[rank], plan().workers(rank).member()});
  }
  for (int other = 0; other < std::ssize(shards_); ++other) {
    if (shards_[other] == PeerId::kNone) continue;
    seated.push_back({shards_[other], plan().shards(other).member()});
  }
  if (replica_[0] != PeerId::kNone) {
    seated.push_back({replica_[0], plan().shards(ToInt(number())).backup().member()});
  }
  return seated;
}

// ---------------------------------------------------------------- output of the shard

void InstalledShard::SendTo(Rank rank, const WireHeader& header,
                            absl::Span<const std::byte> payload, Transport::SendDone done) {
  PublishVersion();
  const PeerId peer = workers_[ToInt(rank)];
  if (peer == PeerId::kNone) {
    const int index = ToInt(rank);
    if (done) done(NotConnected(plan(), "rank", index, plan().workers(index).member()));
    return;
  }
  environment_.counts->params_bytes.Add(static_cast<int64_t>(payload.size()));
  counts_->params_bytes.Add(static_cast<int64_t>(payload.size()));
  if (header.kind == MessageKind::kParams && tracing()) TraceAnswer(header);
  const TraceSpan span(recorder_.trace, recorder_.track, "answer",
                       {{{"step", static_cast<int64_t>(header.step) - 1},
                         {"chunk", static_cast<int64_t>(header.chunk)},
                         {"rank", ToInt(rank)}}});
  environment_.transport->Send(peer, header, payload, std::move(done));
}

void InstalledShard::SendToShard(ShardIndex shard, const WireHeader& header,
                                 absl::Span<const std::byte> payload, Transport::SendDone done) {
  const PeerId peer = shards_[ToInt(shard)];
  if (peer == PeerId::kNone) {
    const int index = ToInt(shard);
    if (done) done(NotConnected(plan(), "shard", index, plan().shards(index).member()));
    return;
  }
  environment_.transport->Send(peer, header, payload, std::move(done));
}

void InstalledShard::SendToReplica(const WireHeader& header, absl::Span<const std::byte> payload,
                                   Transport::SendDone done) {
  const PeerId peer = replica_[0];
  if (peer == PeerId::kNone) {
    const int shard = ToInt(number());
    const std::string& member = plan().shards(shard).backup().member();
    return done(NotConnected(plan(), "the replica of shard", shard, member));
  }
  environment_.counts->forwarded_bytes.Add(static_cast<int64_t>(payload.size()));
  environment_.transport->Send(peer, header, payload, std::move(done));
}

void InstalledShard::StepJudged(const StepVerdict& verdict) {
  progress_->loss_scale.store(verdict.loss_scale, std::memory_order_relaxed);
  progress_->skips_in_row.store(verdict.skips_in_row, std::memory_order_relaxed);
  // Only shard 0 counts, so that the sum over all parameter servers is right.
  if (verdict.skipped && shard_->shard() == kFirstShard) {
    environment_.metrics->skipped_steps.Increment();
    counts_->skipped_steps.Add(1);
  }
}

kernels::OutgoingStores InstalledShard::UpdateBegins(int64_t elements) {
  update_begin_ = tracing() ? Trace::Now() : -1;
  return update_timer_.Begin(elements);
}

void InstalledShard::UpdateEnds(double sum_of_squares) {
  const UpdateTimer::Sample sample = update_timer_.End();
  if (update_begin_ >= 0) {
    // An update of a judged step follows the verdict and not a gradient.
    const int64_t step = pushed_step_ >= 0 ? pushed_step_ : shard_->lowest_version();
    recorder_.trace->Span(recorder_.track, "update", update_begin_, Trace::Now(),
                          {{{"step", step}}});
  }
  if (sample.updates > 0) {
    environment_.counts->apply_duration.Observe(sample.nanoseconds, sample.updates);
  }
  // A replica repeats what its shard has counted already.
  if (!std::isfinite(sum_of_squares) && !IsOfReplica(plan())) {
    environment_.metrics->nonfinite_gradients.Increment();
    counts_->nonfinite_gradients.Add(1);
  }
}

void InstalledShard::StalePushApplied(int64_t staleness) {
  environment_.counts->push_staleness.Observe(staleness);
}

void InstalledShard::SnapshotTaken(std::shared_ptr<const ShardSnapshot> snapshot) {
  listener_->SnapshotTaken(std::move(snapshot));
}

void InstalledShard::SnapshotDeclined(uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                                      const std::string& message) {
  listener_->SnapshotDeclined(shard_->shard(), id, step, outcome, message);
}

void InstalledShard::PublishVersion() {
  progress_->lowest_version.store(shard_->lowest_version(), std::memory_order_relaxed);
  progress_->replica_version.store(shard_->replica_version(), std::memory_order_relaxed);
  const int64_t late = shard_->late_pushes();
  if (late == late_pushes_) return;
  environment_.metrics->late_pushes.Increment(static_cast<double>(late - late_pushes_));
  late_pushes_ = late;
}

}  // namespace muster
