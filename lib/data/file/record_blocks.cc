#include "lib/data/file/record_blocks.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "glog/logging.h"
#include "lib/data/dataset.h"
#include "lib/data/stage_times.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kBlockBytesMin = int64_t{64} << 10;

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// Records are used in random order. With pages of 4 KiB finding the page of a record takes as long
// as parsing it. The end of the memory has small pages, so that it takes no more than `bytes`.
// Returns null if there is no memory.
std::byte* Allocate(int64_t bytes) {
  const int64_t rounded = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  if (bytes < kHugePageBytes) return static_cast<std::byte*>(std::malloc(bytes));
  void* const memory = std::aligned_alloc(kHugePageBytes, rounded);
  if (memory != nullptr) {
    madvise(memory, bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

// The owner's mu_ guards the members. A thread that holds a block which is read needs no lock for
// its state, its parts and its memory: they are constant until it lets go.
struct RecordBlocks::Block {
  enum class State { kEmpty, kReading, kRead, kFailed };

  State state = State::kEmpty;
  int64_t number = 0;
  int64_t uses_left = 0;
  int64_t holders = 0;
  std::vector<Part> parts;
  Memory memory;
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
  const int64_t lanes = std::max<int64_t>(1, block.lanes());
  const int64_t lane_width = std::max<int64_t>(1, data.batch_size() / lanes);
  const int64_t lane_blocks = (window_blocks + lanes - 1) / lanes;
  // One more, because a window may begin and end within a batch.
  options.batches_in_use = lane_blocks * options.block_samples / lane_width + 1;
  return std::make_unique<RecordBlocks>(std::move(options));
}

RecordBlocks::~RecordBlocks() {
  absl::MutexLock lock(&mu_);
  for (const auto& block : blocks_) {
    CHECK_EQ(block->holders, 0) << "block " << block->number;
    std::free(block->memory.data);
  }
  for (const Memory& memory : spare_) std::free(memory.data);
}

RecordBlocks::Held RecordBlocks::Hold(int64_t batch, absl::Span<const SampleRef> samples) {
  Held held(*this);
  held.blocks_.reserve(samples.size());
  bool are_read = true;
  {
    absl::MutexLock lock(&mu_);
    batch_ = batch;
    for (const SampleRef& sample : samples) {
      CHECK(0 <= sample.sample && sample.sample < options_.samples) << sample.sample;
      const int64_t number = sample.sample / options_.block_samples;
      Entry& entry = entries_[number];
      const bool is_new_epoch = sample.epoch > entry.epoch;
      const bool is_new = is_new_epoch || !AreNear(entry.first_use, batch);
      if (is_new) entry.first_use = batch;
      if (is_new && entry.block == nullptr) {
        entry.block = Admit(number);
      } else if (is_new_epoch && entry.block != nullptr) {
        entry.block->uses_left += SamplesOf(number);
      }
      entry.epoch = std::max(entry.epoch, sample.epoch);
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
  return 0 <= at && end <= part.bytes ? block->memory.data + part.at + at : nullptr;
}

int64_t RecordBlocks::SamplesOf(int64_t number) const {
  const int64_t first = number * options_.block_samples;
  return std::min(options_.block_samples, options_.samples - first);
}

int64_t RecordBlocks::BytesOf(absl::Span<const Part> parts) {
  return parts.back().at + parts.back().bytes;
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

bool RecordBlocks::AreNear(int64_t a, int64_t b) const {
  return std::abs(a - b) <= options_.batches_in_use;
}

// Returns a block that is not read yet, or null if there is no room.
RecordBlocks::Block* RecordBlocks::Admit(int64_t number) {
  RemoveUnused();
  std::vector<Part> parts = PartsOf(number);
  const std::optional<Memory> memory = TakeMemory(BytesOf(parts));
  if (!memory) return nullptr;
  held_bytes_ += memory->bytes;
  auto block = std::make_unique<Block>();
  block->number = number;
  block->uses_left = SamplesOf(number);
  block->parts = std::move(parts);
  block->memory = *memory;
  return blocks_.emplace_back(std::move(block)).get();
}

// Returns memory of a block that was used, or memory that is not allocated yet. Returns nothing if
// there is no room.
std::optional<RecordBlocks::Memory> RecordBlocks::TakeMemory(int64_t bytes) {
  const auto fits = std::ranges::find_if(spare_, [bytes](const Memory& memory) {
    return bytes <= memory.bytes && memory.bytes <= bytes + bytes / 2;
  });
  if (fits != spare_.end()) {
    const Memory memory = *fits;
    spare_.erase(fits);
    spare_bytes_ -= memory.bytes;
    return memory;
  }
  // New memory replaces unused memory, so there is no more of it than blocks at a time.
  int64_t room = options_.bytes_max - held_bytes_ - spare_bytes_;
  for (bool is_first = true; !spare_.empty() && (is_first || room < bytes); is_first = false) {
    std::free(spare_.back().data);
    spare_bytes_ -= spare_.back().bytes;
    room += spare_.back().bytes;
    spare_.pop_back();
  }
  if (room < bytes) return std::nullopt;
  return Memory{.bytes = bytes};
}

void RecordBlocks::Remove(const Block& block) {
  held_bytes_ -= block.memory.bytes;
  if (block.memory.data != nullptr) {
    spare_.push_back(block.memory);
    spare_bytes_ += block.memory.bytes;
  }
  entries_[block.number].block = nullptr;
  blocks_.erase(std::ranges::find(blocks_, &block, &std::unique_ptr<Block>::get));
}

void RecordBlocks::RemoveUnused() {
  std::vector<const Block*> unused;
  for (const auto& block : blocks_) {
    const bool is_near = AreNear(entries_[block->number].first_use, batch_);
    if (block->holders == 0 && !is_near) unused.push_back(block.get());
  }
  for (const Block* const block : unused) Remove(*block);
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
  }
}

absl::Status RecordBlocks::Read(Block& block) const {
  if (block.memory.data == nullptr) block.memory.data = Allocate(block.memory.bytes);
  if (block.memory.data == nullptr) return absl::ResourceExhaustedError("no memory for a block");
  for (const Part& part : block.parts) {
    if (part.bytes == 0) continue;
    ASSIGN_OR_RETURN(const auto file, options_.files->Get(part.file));
    RETURN_IF_ERROR(
        file->Read(part.offset, absl::MakeSpan(block.memory.data + part.at, part.bytes)));
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
    if (block->uses_left > 0 && block->state != Block::State::kFailed) continue;
    Remove(*block);
  }
}

void RecordBlocks::WillHold(int64_t batch, absl::Span<const SampleRef> samples) {
  for (const SampleRef& sample : samples) {
    const int64_t number = sample.sample / options_.block_samples;
    std::vector<Part> parts;
    {
      absl::MutexLock lock(&mu_);
      Entry& entry = entries_[number];
      if (entry.block != nullptr || sample.epoch <= entry.asked) continue;
      entry.asked = sample.epoch;
      for (; !asked_.empty() && !AreNear(asked_.front().batch, batch); asked_.pop_front()) {
        asked_bytes_ -= asked_.front().bytes;
      }
      parts = PartsOf(number);
      const int64_t bytes = BytesOf(parts);
      if (asked_bytes_ + bytes > options_.bytes_max) continue;
      asked_.push_back({batch, bytes});
      asked_bytes_ += bytes;
    }
    for (const Part& part : parts) {
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

int64_t RecordBlocks::memory_bytes() const {
  absl::MutexLock lock(&mu_);
  return held_bytes_ + spare_bytes_;
}

int64_t RecordBlocks::asked_bytes() const {
  absl::MutexLock lock(&mu_);
  return asked_bytes_;
}

}  // namespace muster
