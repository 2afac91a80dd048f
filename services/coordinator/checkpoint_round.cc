#include "services/coordinator/checkpoint_round.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/transport/crc32c.h"

namespace muster {
namespace {

absl::Span<const std::byte> BytesOf(const std::string& data) {
  return {reinterpret_cast<const std::byte*>(data.data()), data.size()};
}

absl::Status InvalidSlice(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? WithReason(status, "INVALID_SLICE") : status;
}

}  // namespace

absl::Status CheckpointRound::Open() {
  absl::MutexLock lock(&mu_);
  if (writer_ != nullptr || !opened_.ok()) return opened_;
  absl::flat_hash_set<int> owners;
  for (const v1::PlanChunk& chunk : plan().chunks()) owners.insert(chunk.shard());
  shards_with_bytes_ = std::ssize(owners);
  auto writer = CheckpointWriter::Create(*options_.plan, options_.writer);
  opened_ = writer.status();
  if (writer.ok()) writer_ = *std::move(writer);
  return opened_;
}

std::shared_ptr<CheckpointWriter> CheckpointRound::writer() const {
  absl::MutexLock lock(&mu_);
  return writer_;
}

absl::Status CheckpointRound::Write(int shard, const v1::ShardSlice& slice) {
  if (slice.chunk() < 0 || slice.chunk() >= plan().chunks_size() ||
      plan().chunks(slice.chunk()).shard() != shard) {
    return InvalidSlice(absl::InvalidArgumentError(
        absl::StrCat("chunk ", slice.chunk(), " does not belong to shard ", shard)));
  }
  if (std::ssize(slice.data()) > limits::kSliceBytesMax) {
    return InvalidSlice(absl::InvalidArgumentError(
        absl::StrCat("chunk ", slice.chunk(), ": a slice of ", slice.data().size(),
                     " bytes is over the limit of ", limits::kSliceBytesMax)));
  }
  if (Crc32c(BytesOf(slice.data())) != slice.crc32c()) {
    return WithReason(
        absl::DataLossError(absl::StrCat(
            "shard ", shard, ", chunk ", slice.chunk(), ", slot ", slice.slot(), ", offset ",
            slice.offset_bytes(), ": checksum mismatch over ", slice.data().size(), " bytes")),
        "CHECKSUM_MISMATCH");
  }
  return InvalidSlice(writer()->WriteSlice(slice.chunk(), slice.slot(), slice.offset_bytes(),
                                           BytesOf(slice.data())));
}

int64_t CheckpointRound::ShardBytes(int shard) const {
  int64_t elements = 0;
  for (const v1::PlanChunk& chunk : plan().chunks()) {
    if (chunk.shard() != shard) continue;
    const SlotRange slots = SlotsOfChunk(plan(), chunk);
    elements += chunk.elements() * (1 + slots.last - slots.first);
  }
  return elements * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<bool> CheckpointRound::FinishShard(int shard, int64_t bytes) {
  if (const int64_t whole = ShardBytes(shard); bytes != whole) {
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat("shard ", shard, " sent ", bytes, " of ", whole, " bytes")),
                      "INCOMPLETE_SHARD");
  }
  absl::MutexLock lock(&mu_);
  if (bytes > 0) finished_.insert(shard);
  if (committing_ || std::ssize(finished_) < shards_with_bytes_) return false;
  committing_ = true;
  return true;
}

void CheckpointRound::Resolve(absl::Status outcome) {
  absl::MutexLock lock(&mu_);
  if (!outcome_) outcome_ = std::move(outcome);
}

std::optional<absl::Status> CheckpointRound::AwaitOutcome(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return outcome_.has_value(); };
  AwaitFor(&mu_, absl::Condition(&ended), timeout);
  return outcome_;
}

absl::StatusOr<v1::Checkpoint> CheckpointRound::Commit() { return writer()->Commit(); }

absl::Status ShardUpload::Write(const v1::ShardSlice& slice) {
  RETURN_IF_ERROR(round_->Write(shard_, slice));
  bytes_ += slice.data().size();
  return absl::OkStatus();
}

}  // namespace muster
