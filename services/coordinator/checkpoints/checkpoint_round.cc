#include "services/coordinator/checkpoints/checkpoint_round.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

absl::Span<const std::byte> BytesOf(const std::string& data) {
  return {reinterpret_cast<const std::byte*>(data.data()), data.size()};
}

// Limits the places in one message to about a hundred kilobytes.
constexpr int kPlacesMax = 4096;

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

absl::Status CheckpointRound::CheckSlice(int shard, int chunk, int64_t bytes) const {
  if (chunk < 0 || chunk >= plan().chunks_size()) {
    return InvalidSlice(absl::InvalidArgumentError(
        absl::StrCat("shard ", shard, ": chunk ", chunk,
                     " is not in the plan, which has the chunks 0 to ", plan().chunks_size() - 1)));
  }
  if (const int owner = plan().chunks(chunk).shard(); owner != shard) {
    return InvalidSlice(absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk, " belongs to shard ", owner, ", not to shard ", shard)));
  }
  if (bytes > limits::kSliceBytesMax) {
    return InvalidSlice(absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk, ": a slice of ", bytes, " bytes is over the limit of ",
                     limits::kSliceBytesMax)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointRound::Write(int shard, const v1::ShardSlice& slice) {
  RETURN_IF_ERROR(CheckSlice(shard, slice.chunk(), std::ssize(slice.data())));
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

absl::Status CheckpointRound::NoteWritten(int shard, const v1::WrittenSlice& slice) {
  RETURN_IF_ERROR(CheckSlice(shard, slice.chunk(), slice.size_bytes()));
  return InvalidSlice(writer()->SliceWritten(slice.chunk(), slice.slot(), slice.offset_bytes(),
                                             slice.size_bytes(), slice.crc32c()));
}

std::vector<v1::WriteShardDirectResponse> CheckpointRound::LayoutFor(
    int shard, const std::string& jobs_folder) const {
  const std::shared_ptr<CheckpointWriter> files = writer();
  std::vector<v1::WriteShardDirectResponse> messages(1);
  messages[0].set_jobs_folder(jobs_folder);
  messages[0].set_folder(std::string(absl::StripPrefix(files->temporary(), jobs_folder + "/")));
  for (const CheckpointWriter::File& file : files->Files()) {
    v1::CheckpointFile& told = *messages[0].add_files();
    told.set_name(file.name);
    told.set_size_bytes(file.bytes);
  }
  for (int chunk = 0; chunk < plan().chunks_size(); ++chunk) {
    if (plan().chunks(chunk).shard() != shard) continue;
    const SlotRange slots = SlotsOfChunk(plan(), plan().chunks(chunk));
    for (int slot = slots.first; slot <= slots.last; ++slot) {
      if (messages.back().places_size() == kPlacesMax) messages.emplace_back();
      const CheckpointWriter::Place place = files->PlaceOf(chunk, slot);
      v1::ChunkPlace& told = *messages.back().add_places();
      told.set_chunk(chunk);
      told.set_slot(slot);
      told.set_file(place.file);
      told.set_offset_bytes(place.offset_bytes);
    }
  }
  messages.back().set_ready(true);
  return messages;
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

CheckpointRound::Attempt CheckpointRound::BeginShard(int shard) {
  absl::MutexLock lock(&mu_);
  return {.number = ++attempts_[shard], .finished_before = finished_.contains(shard)};
}

absl::StatusOr<bool> CheckpointRound::FinishShard(int shard, int attempt, int64_t bytes) {
  if (const int64_t whole = ShardBytes(shard); bytes != whole) {
    return WithReason(absl::InvalidArgumentError(
                          absl::StrCat("shard ", shard, " sent ", bytes, " of ", whole, " bytes")),
                      "INCOMPLETE_SHARD");
  }
  absl::MutexLock lock(&mu_);
  // Slices of a newer attempt may already have replaced some of this attempt's.
  if (attempts_[shard] != attempt) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat("shard ", shard, " has begun to write step ",
                                                   step(), " again since then")),
        "STALE_SNAPSHOT");
  }
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

absl::Status ShardUpload::NoteWritten(const v1::WrittenSlice& slice) {
  RETURN_IF_ERROR(round_->NoteWritten(shard_, slice));
  bytes_ += slice.size_bytes();
  return absl::OkStatus();
}

bool ShardUpload::TakeFromBefore() {
  if (attempt_.finished_before) bytes_ = round_->ShardBytes(shard_);
  return attempt_.finished_before;
}

}  // namespace muster
