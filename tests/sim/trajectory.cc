#include "tests/sim/trajectory.h"

#include <bit>

namespace muster {
namespace {

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

bool Trajectory::Has(const v1::PlanChunk& chunk, int64_t version, absl::Span<const float> values) {
  uint64_t hash = values.size();
  for (const float value : values) hash = Mix(hash ^ std::bit_cast<uint32_t>(value));
  const auto key = std::make_tuple(chunk.parameter(), chunk.offset(), version);
  if (!closed_) return hashes_.emplace(key, hash).first->second == hash;
  const auto known = hashes_.find(key);
  return known != hashes_.end() && known->second == hash;
}

void Trajectory::AddGradient(const v1::PlanChunk& chunk, int64_t step, const v1::PlanWorker& worker,
                             absl::Span<float> gradient) {
  for (int64_t sample = 0; sample < worker.samples(); ++sample) {
    const uint64_t seed = Mix(step * 1009 + worker.first_position() + sample + 1);
    for (size_t i = 0; i < gradient.size(); ++i) {
      const uint64_t element = chunk.parameter() * 65'537 + chunk.offset() + i;
      gradient[i] += static_cast<float>(static_cast<int>(Mix(seed + element) % 7) - 3);
    }
  }
}

}  // namespace muster
