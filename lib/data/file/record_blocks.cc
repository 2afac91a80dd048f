#include "lib/data/file/record_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "glog/logging.h"
#include "lib/data/dataset.h"
#include "lib/data/stage_times.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Blocks have about the same size. A little more memory than the first one needs fits most others.
constexpr int64_t kSpareShare = 16;

constexpr int64_t kBlockBytesMin = int64_t{64} << 10;

// A window mixes its blocks evenly. One of n blocks is not used for 16 n uses of the window with a
// probability of e^-16.
constexpr int64_t kUsesPerBlock = 16;

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Records are used in random order. With pages of 4 KiB finding the page of a record takes as long
// as parsing it. The end of the memory has small pages, so that it takes no more than `bytes`.
std::byte* Allocate(int64_t bytes) {
  const int64_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (bytes < kHugePageBytes) return static_cast<std::byte*>(std::malloc(bytes));
  void* const memory = std::aligned_alloc(kHugePageBytes, rounded);
  CHECK(memory != nullptr) << bytes << " bytes";
  madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

// The owner's mu_ guards the members. A thread that holds a block which is read needs no lock for
// its state, its parts and its memory: they are constant until it lets go.
struct RecordBlocks::Block {
  enum class State { kFree, kEmpty, kReading, kRead, kFailed };

  State state = State::kFree;
  int64_t number = -1;
  int64_t uses_left = 0;
  int64_t holders = 0;
  int64_t capacity = 0;  // of `memory` as soon as the block is read
  std::vector<Part> parts;
  // The thread that reads the block uses these without a lock.
  std::unique_ptr<std::byte[], decltype(&std::free)> memory{nullptr, std::free};
  int64_t memory_bytes = 0;
};

RecordBlocks::RecordBlocks(Options options) : options_(std::move(options)) {
  CHECK_GE(options_.block_samples, 1);
  CHECK(0 <= options_.samples && options_.samples <= options_.index->samples());
  entries_.resize((options_.samples + options_.block_samples - 1) / options_.block_samples);
}

std::unique_ptr<RecordBlocks> RecordBlocks::ForShuffle(const v1::DataSpec& data, Options options) {
  if (!data.shuffle().has_block() || options.bytes_max == 0) return nullptr;
  const v1::BlockShuffle& block = data.shuffle().block();
  const int64_t sample_bytes = options.index->mean_sample_bytes();
  options.block_samples = BlockSamples(data, sample_bytes, options.samples);
  if (options.block_samples * sample_bytes < kBlockBytesMin) return nullptr;
  const int64_t window_blocks =
      block.window_blocks() > 0 ? block.window_blocks() : limits::kWindowBlocksDefault;
  // Each lane has a block at least. The positions of a batch visit the lanes in turn.
  options.uses_between_max =
      kUsesPerBlock * (window_blocks + block.lanes()) + 2 * data.batch_size();
  return std::make_unique<RecordBlocks>(std::move(options));
}

RecordBlocks::~RecordBlocks() {
  absl::MutexLock lock(&mu_);
  for (const auto& block : blocks_) CHECK_EQ(block->holders, 0) << "block " << block->number;
}

RecordBlocks::Held RecordBlocks::Hold(absl::Span<const SampleRef> samples) {
  Held held(*this);
  held.blocks_.reserve(samples.size());
  bool are_read = true;
  {
    absl::MutexLock lock(&mu_);
    for (const SampleRef& sample : samples) {
      CHECK(0 <= sample.sample && sample.sample < options_.samples) << sample.sample;
      const int64_t number = sample.sample / options_.block_samples;
      Entry& entry = entries_[number];
      ++uses_;
      const bool is_new_epoch = sample.epoch > entry.epoch;
      const bool is_new = is_new_epoch || uses_ - entry.last_use > options_.uses_between_max;
      if (is_new && entry.block == nullptr) {
        entry.block = Admit(number);
      } else if (is_new_epoch && entry.block != nullptr) {
        entry.block->uses_left += SamplesOf(number);
      }
      entry.epoch = std::max(entry.epoch, sample.epoch);
      entry.last_use = uses_;
      held.blocks_.push_back(entry.block);
      if (entry.block == nullptr) continue;
      ++entry.block->holders;
      are_read &= entry.block->state == Block::State::kRead;
    }
  }
  if (!are_read) Load(held.blocks_);
  return held;
}

RecordBlocks::Held::~Held() { owner_.Release(blocks_); }

const std::byte* RecordBlocks::Held::Find(size_t i, const RecordIndex::Place& place) const {
  const Block* const block = blocks_[i];
  if (block == nullptr || block->state == Block::State::kFailed) return nullptr;
  const Part& part = block->parts[place.file - block->parts[0].file];
  const int64_t at = place.offset - part.offset;
  const int64_t end = at + place.bytes + owner_.options_.tail_bytes;
  return 0 <= at && end <= part.bytes ? block->memory.get() + part.at + at : nullptr;
}

int64_t RecordBlocks::SamplesOf(int64_t number) const {
  const int64_t first = number * options_.block_samples;
  return std::min(options_.block_samples, options_.samples - first);
}

// Returns a part for each file from that of the first sample to that of the last one.
std::vector<RecordBlocks::Part> RecordBlocks::PartsOf(int64_t number) const {
  const RecordIndex& index = *options_.index;
  const int64_t first = number * options_.block_samples, last = first + SamplesOf(number) - 1;
  std::vector<Part> parts;
  int64_t at = 0;
  for (int32_t file = index.at(first).file; file <= index.at(last).file; ++file) {
    const int64_t begin = std::max(first, index.first_sample(file));
    const int64_t end = std::min(last + 1, index.first_sample(file) + index.files()[file].samples);
    Part part{.file = file, .at = at};
    if (begin < end) {
      // Members of a sample may have any order.
      int64_t from = std::numeric_limits<int64_t>::max(), to = 0;
      for (int slot = 0; slot < index.slots(); ++slot) {
        const RecordIndex::Place low = index.at(begin, slot), high = index.at(end - 1, slot);
        if (low.bytes >= 0) from = std::min(from, low.offset);
        if (high.bytes >= 0) to = std::max(to, high.offset + high.bytes + options_.tail_bytes);
      }
      if (from < to) part.offset = from, part.bytes = to - from;
    }
    at += part.bytes;
    parts.push_back(part);
  }
  return parts;
}

bool RecordBlocks::IsUnused(const Block& block) const {
  return block.holders == 0 &&
         (block.state == Block::State::kFree ||
          uses_ - entries_[block.number].last_use > options_.uses_between_max);
}

// Returns memory for a block that is not in memory, or null if there is no room.
RecordBlocks::Block* RecordBlocks::Admit(int64_t number) {
  std::vector<Part> parts = PartsOf(number);
  const int64_t bytes = parts.back().at + parts.back().bytes;
  // Prefers memory that is large enough, and then memory that can be replaced by larger one.
  Block* chosen = nullptr;
  for (const auto& block : blocks_) {
    if (!IsUnused(*block)) continue;
    if (chosen == nullptr || block->capacity >= bytes) chosen = block.get();
    if (chosen->capacity >= bytes) break;
  }
  const int64_t before = chosen == nullptr ? 0 : chosen->capacity;
  const int64_t after = std::max(before, bytes + bytes / kSpareShare);
  if (held_bytes_ - before + after > options_.bytes_max) return nullptr;
  if (chosen == nullptr) chosen = blocks_.emplace_back(std::make_unique<Block>()).get();
  if (chosen->state != Block::State::kFree) Free(*chosen);
  held_bytes_ += after - before;
  chosen->state = Block::State::kEmpty;
  chosen->number = number;
  chosen->uses_left = SamplesOf(number);
  chosen->capacity = after;
  chosen->parts = std::move(parts);
  return chosen;
}

void RecordBlocks::Free(Block& block) {
  Entry& entry = entries_[block.number];
  if (entry.block == &block) entry.block = nullptr;
  block.state = Block::State::kFree;
}

void RecordBlocks::Load(absl::Span<Block* const> blocks) {
  const auto first_in = [blocks](Block::State state) {
    const auto found = std::ranges::find_if(
        blocks, [state](const Block* block) { return block != nullptr && block->state == state; });
    return found == blocks.end() ? nullptr : *found;
  };
  const auto none_is_read = [&] { return first_in(Block::State::kReading) == nullptr; };
  for (;;) {
    Block* block;
    {
      absl::MutexLock lock(&mu_);
      block = first_in(Block::State::kEmpty);
      if (block == nullptr) {
        mu_.Await(absl::Condition(&none_is_read));
        return;
      }
      block->state = Block::State::kReading;
    }
    const absl::Status status = Read(*block);
    absl::MutexLock lock(&mu_);
    block->state = status.ok() ? Block::State::kRead : Block::State::kFailed;
    if (!status.ok()) entries_[block->number].block = nullptr;
  }
}

absl::Status RecordBlocks::Read(Block& block) const {
  if (block.memory_bytes < block.capacity) {
    block.memory.reset();
    block.memory.reset(Allocate(block.capacity));
    block.memory_bytes = block.capacity;
  }
  for (const Part& part : block.parts) {
    if (part.bytes == 0) continue;
    ASSIGN_OR_RETURN(const auto file, options_.files->Get(part.file));
    RETURN_IF_ERROR(
        file->Read(part.offset, absl::MakeSpan(block.memory.get() + part.at, part.bytes)));
    CountReadBytes(part.bytes);
  }
  return absl::OkStatus();
}

void RecordBlocks::Release(absl::Span<Block* const> blocks) {
  absl::MutexLock lock(&mu_);
  for (Block* const block : blocks) {
    if (block == nullptr) continue;
    --block->uses_left;
    if (--block->holders > 0) continue;
    if (block->uses_left <= 0 || block->state == Block::State::kFailed) Free(*block);
  }
}

void RecordBlocks::WillHold(absl::Span<const SampleRef> samples) {
  for (const SampleRef& sample : samples) {
    const int64_t number = sample.sample / options_.block_samples;
    {
      absl::MutexLock lock(&mu_);
      Entry& entry = entries_[number];
      if (entry.block != nullptr || sample.epoch <= entry.asked) continue;
      entry.asked = sample.epoch;
    }
    for (const Part& part : PartsOf(number)) {
      const auto file = options_.files->Get(part.file);
      // Reading the samples finds the fault of a file.
      if (file.ok()) (*file)->WillNeed(part.offset, part.bytes);
    }
  }
}

int64_t RecordBlocks::held_bytes() const {
  absl::MutexLock lock(&mu_);
  return held_bytes_;
}

}  // namespace muster
