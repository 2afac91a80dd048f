#include "lib/plan/chunk_placement.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <utility>

#include "lib/plan/parameter_table.h"

namespace muster {
namespace {

constexpr int64_t kAlignment = 64;

// The shards with the same share, the least loaded on top.
using Load = std::pair<int64_t, int>;  // elements, shard
using Lightest = std::priority_queue<Load, std::vector<Load>, std::greater<>>;

// Moves the chunks of frozen parameters to the end; returns the others.
absl::Span<v1::PlanChunk> TrainedFirst(std::vector<v1::PlanChunk>& chunks,
                                       const std::vector<bool>& frozen) {
  if (frozen.empty()) return absl::MakeSpan(chunks);
  const auto rest =
      std::stable_partition(chunks.begin(), chunks.end(),
                            [&](const v1::PlanChunk& chunk) { return !frozen[chunk.parameter()]; });
  return absl::MakeSpan(chunks).first(rest - chunks.begin());
}

std::vector<double> SharesOfFrozen(absl::Span<const v1::PlanChunk> trained,
                                   absl::Span<const double> shares) {
  if (trained.empty()) return {shares.begin(), shares.end()};
  std::vector<double> of_frozen(shares.size(), 0);
  for (const v1::PlanChunk& chunk : trained) of_frozen[chunk.shard()] = shares[chunk.shard()];
  return of_frozen;
}

int64_t HalfOf(int64_t chunk_bytes) {
  return std::max(limits::kChunkBytesMin, chunk_bytes / 2 / kAlignment * kAlignment);
}

}  // namespace

std::vector<double> EqualShares(int shard_count) {
  return std::vector<double>(shard_count, 1.0 / shard_count);
}

std::vector<double> ShardShares(absl::Span<const std::string> worker_hosts,
                                absl::Span<const std::string> shard_hosts) {
  const std::set<std::string> working(worker_hosts.begin(), worker_hosts.end());
  std::map<std::string, int> shards_on;
  for (const std::string& host : shard_hosts) ++shards_on[host];
  if (working.contains("") || shards_on.contains("")) {
    return EqualShares(static_cast<int>(shard_hosts.size()));
  }
  const auto n = static_cast<double>(working.size());
  double g = 0, k = 0;
  for (const auto& [host, shards] : shards_on) (working.contains(host) ? g : k) += 1;

  double of_shared = 0;  // share of M for each shared host
  if (k == 0) {
    of_shared = 1 / g;
  } else if (n == 1) {
    of_shared = g;  // nothing leaves the host
  } else if (g > 0 && n > k) {
    of_shared = (n - k) / (g * n + k * n - 2 * k);
  }
  const double of_other = k > 0 ? (1 - g * of_shared) / k : 0;
  std::vector<double> shares;
  for (const std::string& host : shard_hosts) {
    shares.push_back((working.contains(host) ? of_shared : of_other) / shards_on[host]);
  }
  return shares;
}

void PlaceChunks(absl::Span<v1::PlanChunk> chunks, absl::Span<const double> shares) {
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(
      order, [&](size_t a, size_t b) { return chunks[a].elements() > chunks[b].elements(); });
  // Of the shards with the same share, only the least loaded one can be the best. There are few
  // different shares, because hosts of one kind with the same number of shards have the same one.
  std::map<double, Lightest, std::greater<>> by_share;
  for (int shard = 0; shard < std::ssize(shares); ++shard) {
    if (shares[shard] > 0) by_share[shares[shard]].push({0, shard});
  }
  for (const size_t index : order) {
    const int64_t elements = chunks[index].elements();
    Lightest* best = nullptr;
    std::pair<double, int> least{std::numeric_limits<double>::infinity(), 0};
    for (auto& [share, lightest] : by_share) {
      const auto [load, shard] = lightest.top();
      const std::pair<double, int> then{static_cast<double>(load + elements) / share, shard};
      if (then < least) std::tie(least, best) = std::pair(then, &lightest);
    }
    const auto [load, shard] = best->top();
    best->pop();
    chunks[index].set_shard(shard);
    best->push({load + elements, shard});
  }
}

void PlaceChunks(absl::Span<v1::PlanChunk> chunks, int shard_count) {
  PlaceChunks(chunks, EqualShares(shard_count));
}

double Imbalance(absl::Span<const v1::PlanChunk> chunks, absl::Span<const double> shares) {
  std::vector<double> loads(shares.size(), 0);
  double total = 0;
  for (const v1::PlanChunk& chunk : chunks) {
    loads[chunk.shard()] += static_cast<double>(chunk.elements());
    total += static_cast<double>(chunk.elements());
  }
  double worst = 0;
  for (size_t shard = 0; shard < shares.size(); ++shard) {
    if (loads[shard] > 0) worst = std::max(worst, loads[shard] / (shares[shard] * total));
  }
  return worst;
}

std::vector<v1::PlanChunk> CutAndPlaceChunks(const v1::Graph& graph, int64_t chunk_bytes,
                                             absl::Span<const double> shares,
                                             const std::vector<bool>& frozen, int64_t chunks_max) {
  std::vector<v1::PlanChunk> best;
  double least = std::numeric_limits<double>::infinity();
  for (;; chunk_bytes = HalfOf(chunk_bytes)) {
    std::vector<v1::PlanChunk> chunks = CutIntoChunks(graph, chunk_bytes);
    if (!best.empty() && std::ssize(chunks) > chunks_max) return best;
    const absl::Span<v1::PlanChunk> trained = TrainedFirst(chunks, frozen);
    PlaceChunks(trained, shares);
    PlaceChunks(absl::MakeSpan(chunks).subspan(trained.size()), SharesOfFrozen(trained, shares));
    const double imbalance = Imbalance(trained, shares);
    // Keeps the most balanced attempt.
    if (imbalance < least) {
      least = imbalance;
      std::ranges::sort(chunks, {}, [](const v1::PlanChunk& chunk) {
        return std::pair(chunk.parameter(), chunk.offset());
      });
      best = std::move(chunks);
    }
    if (least <= kImbalanceMax || chunk_bytes <= limits::kChunkBytesMin) return best;
  }
}

}  // namespace muster
