#include "lib/shard/core/shard_answers.h"

#include <algorithm>
#include <utility>

namespace muster {
namespace {

constexpr Rank kNobody{-1};

}  // namespace

ShardAnswers::ShardAnswers(const v1::JobPlan& plan, const ChunkStore& store,
                           std::function<void(LocalChunk)> freed,
                           std::function<void(LocalChunk, Rank, int64_t step)> fetch)
    : plan_(plan),
      store_(store),
      freed_(std::move(freed)),
      fetch_(std::move(fetch)),
      chunks_(store.size()),
      fetching_(store.size(), plan.workers_size()) {
  for (const LocalChunk index : store.chunks()) {
    chunks_[index].buffers.resize(store.value_buffers());
    const WireFormat& format = store.values_format(index);
    if (format.dtype == WireDType::kF32) continue;
    chunks_[index].encoder = ChunkEncoder::Create(format, /*seed=*/0);
  }
}

void ShardAnswers::TakeUp(const ShardAnswers& before) {
  for (const LocalChunk index : chunks_.numbers()) {
    const std::vector<Buffer>& old = before.chunks_[index].buffers;
    for (size_t i = 0; i < old.size(); ++i) chunks_[index].buffers[i].encoded = old[i].encoded;
  }
}

bool ShardAnswers::BeginFetch(LocalChunk chunk, Rank rank, int64_t step) {
  Fetching& fetching = fetching_(chunk, rank);
  if (!std::exchange(fetching.answering, true)) return true;
  fetching.waiting = step;
  return false;
}

void ShardAnswers::RankLost(Rank rank) {
  for (const LocalChunk chunk : chunks_.numbers()) fetching_(chunk, rank).waiting = -1;
}

void ShardAnswers::Send(const Answer& answer) {
  const LocalChunk chunk = answer.chunk;
  const absl::Span<const std::byte> values = WireValues(chunk, answer.version);
  const WireHeader header{
      .kind = MessageKind::kParams,
      .dtype = store_.values_format(chunk).dtype,
      .generation = plan_.generation(),
      .job = plan_.job_number(),
      .step = answer.step,
      .chunk = static_cast<uint32_t>(store_.id(chunk)),
      .rank = static_cast<uint32_t>(answer.rank),
      .length = values.size(),
      .scalar = answer.squares,
      .loss_scale = answer.loss_scale,
  };
  // Counted before it is sent, because the send may end inside SendTo().
  ++chunks_[chunk].buffers[answer.version.values].sending;
  // The capture is two words, which AnyInvocable stores without allocating.
  output_->SendTo(
      answer.rank, header, values,
      [ticket = tickets_.Take(), chunk, buffer = static_cast<int16_t>(answer.version.values),
       fetcher = static_cast<int16_t>(ToInt(answer.is_fetch ? answer.rank : kNobody))](
          const absl::Status&) mutable {
        ShardAnswers& answers = ticket.owner();
        ticket.GiveBack();
        answers.Sent(chunk, buffer, Rank(fetcher));
      });
}

// `fetcher` is the rank that fetched the values, or kNobody if they do not answer a fetch.
void ShardAnswers::Sent(LocalChunk chunk, int buffer, Rank fetcher) {
  if (--chunks_[chunk].buffers[buffer].sending == 0) freed_(chunk);
  if (fetcher == kNobody) return;
  Fetching& fetching = fetching_(chunk, fetcher);
  fetching.answering = false;
  const int64_t step = std::exchange(fetching.waiting, -1);
  if (step >= 0) fetch_(chunk, fetcher, step);
}

// Encodes the values unless the optimizer has stored them in the wire format already. It does not
// store initial values, averages, statistics and the values after a skipped step.
absl::Span<const std::byte> ShardAnswers::WireValues(LocalChunk chunk,
                                                     const ChunkStore::Version& version) {
  const absl::Span<std::byte> wire = store_.WireValues(chunk, version);
  Buffer& buffer = chunks_[chunk].buffers[version.values];
  if (chunks_[chunk].encoder != nullptr && !buffer.encoded) {
    chunks_[chunk].encoder->Encode(store_.Values(chunk, version), wire);
    buffer.encoded = true;
  }
  return wire;
}

int ShardAnswers::FreeBuffer(LocalChunk chunk, const ChunkStore::Version& current,
                             const ChunkStore::Version& previous) const {
  const std::vector<Buffer>& buffers = chunks_[chunk].buffers;
  int free = -1;
  for (int i = 0; i < std::ssize(buffers); ++i) {
    if (i == current.values || buffers[i].sending > 0) continue;
    if (free < 0 || free == previous.values) free = i;
  }
  return free;
}

void ShardAnswers::Stored(LocalChunk chunk, int buffer, bool encoded) {
  chunks_[chunk].buffers[buffer].encoded = encoded;
}

}  // namespace muster
