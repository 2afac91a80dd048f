// Decides how finely parameters are cut into chunks, which shard owns each chunk, and how much each
// shard gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A shard is balanced if its bytes are at most this multiple of its share.
inline constexpr double kImbalanceMax = 1.05;

// Returns the share of a job's bytes that each shard should own, so that the busiest network card
// of the job has as little to send as possible. `worker_hosts` has an entry per worker,
// `shard_hosts` one per shard. The result has one entry per shard, >= 0, with sum 1.
//
// There are n hosts with workers, of which g have shards too, and k hosts with only shards. There
// are M bytes. Per step, a shared host that owns x bytes sends (M - x) + (n - 1) x: its pushes and
// its answers. A host with only shards that owns y bytes sends n y. Both are equal at
//
//   x = (n - k) M / (g n + k n - 2 k),  y = (M - g x) / k
//
// The case g = n is Theorem 1 of Y. Jiang et al., "A unified architecture for accelerating
// distributed DNN training in heterogeneous GPU/CPU clusters", OSDI 2020.
//
// A kind of host with nothing left gets share 0: with k >= n the shared hosts, with n = 1 all but
// the workers' host. All shards of a host get the same share. If a host is unknown (""), all shards
// get the same.
std::vector<double> ShardShares(absl::Span<const std::string> worker_hosts,
                                absl::Span<const std::string> shard_hosts);
std::vector<double> EqualShares(int shard_count);

// Sets every chunk's shard. The largest chunk comes first, and goes to the shard that is then least
// loaded for its share. Ties go to the lower index. A shard without share gets nothing.
// Deterministic. Requires: `shares` are >= 0, and at least one is > 0.
void PlaceChunks(absl::Span<v1::PlanChunk> chunks, absl::Span<const double> shares);
void PlaceChunks(absl::Span<v1::PlanChunk> chunks, int shard_count);

// Returns the largest ratio of a shard's part of all bytes to its share.
double Imbalance(absl::Span<const v1::PlanChunk> chunks, absl::Span<const double> shares);

// Returns the chunks of every parameter in order, cut and placed. No chunk is larger than
// `chunk_bytes`. Chunks are halved until no shard has more than kImbalanceMax times its share, but
// never below limits::kChunkBytesMin and never into more than `chunks_max`. A model that is too
// small for this is cut in the best way found: 2 values cannot be spread over 16 shards. A chunk
// begins at a multiple of 64 bytes of its parameter if `chunk_bytes` is such a multiple.
//
// `frozen` has an entry per parameter, or is empty for none. Frozen parameters cause no traffic.
// They are spread by shares too, but apart from the others and without further balancing. They go
// only to shards with trained chunks, because other shards would not know the job's progress.
std::vector<v1::PlanChunk> CutAndPlaceChunks(const v1::Graph& graph, int64_t chunk_bytes,
                                             absl::Span<const double> shares,
                                             const std::vector<bool>& frozen = {},
                                             int64_t chunks_max = limits::kChunksMax);

}  // namespace muster
