#include "lib/shard/snapshot/snapshot_writer.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/log/log_scope.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

// An exponent of all ones means infinity or NaN. Counting without a branch lets the compiler
// vectorize the loop.
bool AllFinite(absl::Span<const float> elements) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t others = 0;
  for (const float element : elements) {
    others += (std::bit_cast<uint32_t>(element) & kExponent) == kExponent ? 1 : 0;
  }
  return others == 0;
}

// The kinds of outcomes. For each shard the writer keeps the last outcome of each kind.
enum class Kind { kPeriodic, kPassedOver, kDemanded };

Kind KindOf(uint64_t id, v1::SnapshotOutcome outcome) {
  if (id != 0) return Kind::kDemanded;
  return outcome == v1::SNAPSHOT_MISSED ? Kind::kPassedOver : Kind::kPeriodic;
}

}  // namespace

SnapshotWriter::SnapshotWriter(Options options)
    : options_(std::move(options)), snapshots_(options_.shards + 1) {
  for (int i = 0; i < options_.shards; ++i) {
    threads_.emplace_back([this] { Run(stop_.get_token()); });
  }
}

SnapshotWriter::~SnapshotWriter() { Close(); }

void SnapshotWriter::Close() {
  stop_.request_stop();
  snapshots_.Close();
}

void SnapshotWriter::Join() {
  Close();
  threads_.clear();
}

void SnapshotWriter::Taken(std::shared_ptr<const ShardSnapshot> snapshot) {
  Note(snapshot->shard, snapshot->id, snapshot->step, v1::SNAPSHOT_TAKEN);
  snapshots_.TryPost(std::move(snapshot));
}

void SnapshotWriter::Declined(ShardIndex shard, uint64_t id, int64_t step,
                              v1::SnapshotOutcome outcome, const std::string& message) {
  Note(shard, id, step, outcome, message);
}

std::vector<v1::SnapshotReport> SnapshotWriter::reports() const {
  absl::MutexLock lock(&mu_);
  return reports_;
}

// Checks the values and not the optimizer slots, because infinite slots are harmless.
absl::Status SnapshotWriter::CheckFinite(const v1::JobPlan& plan, const ShardSnapshot& snapshot) {
  if (plan.spec().on_non_finite() == v1::NON_FINITE_IGNORE) return absl::OkStatus();
  for (const ShardSnapshot::Piece& piece : snapshot.pieces) {
    if (piece.slot != 0 || AllFinite(piece.elements)) continue;
    const v1::PlanChunk& chunk = plan.chunks(ToInt(piece.chunk));
    return absl::OutOfRangeError(
        absl::StrCat("parameter '", plan.graph().parameters(chunk.parameter()).name(),
                     "' has values, from its ", chunk.offset(),
                     "th on, that are not finite; the snapshot is discarded so that it "
                     "cannot replace a good checkpoint"));
  }
  return absl::OkStatus();
}

bool SnapshotWriter::reading() const {
  absl::MutexLock lock(&mu_);
  return reading_ > 0;
}

// Runs until Close(). Counts itself in `reading_` before it checks `stop`. So once Close() was
// called and reading() is false, no snapshot is read any more.
void SnapshotWriter::Run(const std::stop_token& stop) {
  const auto count = [this](int more) {
    absl::MutexLock lock(&mu_);
    reading_ += more;
  };
  std::shared_ptr<const ShardSnapshot> snapshot;
  while (snapshots_.Take(snapshot, absl::InfiniteDuration())) {
    count(1);
    if (!stop.stop_requested()) Write(*snapshot, stop);
    snapshot.reset();
    count(-1);
  }
}

void SnapshotWriter::Write(const ShardSnapshot& snapshot, const std::stop_token& stop) {
  const v1::JobPlan& plan = *options_.plan;
  const LogScope scope({.job = plan.job(), .generation = plan.generation()});
  const auto begin = std::chrono::steady_clock::now();
  absl::Status written = CheckFinite(plan, snapshot);
  if (written.ok() && !snapshot.pieces.empty()) {
    written = options_.checkpoints->WriteShard(plan, snapshot, stop);
  }
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  LOG_IF(WARNING, !written.ok() && !stop.stop_requested())
      << plan.job() << ", shard " << snapshot.shard << ": the snapshot of step " << snapshot.step
      << " was not written: " << written;
  Note(snapshot.shard, snapshot.id, snapshot.step,
       written.ok() ? v1::SNAPSHOT_WRITTEN : v1::SNAPSHOT_FAILED, std::string(written.message()));
  options_.written(snapshot, took);
}

void SnapshotWriter::Note(ShardIndex shard, uint64_t id, int64_t step, v1::SnapshotOutcome outcome,
                          const std::string& message) {
  {
    absl::MutexLock lock(&mu_);
    auto same = std::ranges::find_if(reports_, [&](const v1::SnapshotReport& report) {
      return ShardIndex(report.shard()) == shard &&
             KindOf(report.snapshot(), report.outcome()) == KindOf(id, outcome);
    });
    if (same != reports_.end() && same->snapshot() > id) return;  // a newer request superseded it
    v1::SnapshotReport& report = same != reports_.end() ? *same : reports_.emplace_back();
    report.set_shard(ToInt(shard));
    report.set_snapshot(id);
    report.set_step(step);
    report.set_outcome(outcome);
    report.set_message(Printable(message));
  }
  options_.report_soon();
}

}  // namespace muster
