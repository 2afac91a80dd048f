// Which shard owns which chunk: how finely parameters are cut for that, and how much each shard
// gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "lib/limits/limits.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A shard is balanced when it has at most this multiple of the bytes that are its share.
inline constexpr double kImbalanceMax = 1.05;

// The share of a job's bytes that each shard is to own so that the busiest network card of the job
// has as little to do as possible. `worker_hosts`: of every worker; `shard_hosts`: of every shard.
// One per shard, >= 0, together 1.
//
// Of n hosts with workers g have shards too, and k hosts have shards only. With M bytes, a shared
// host that owns x of them sends (M - x) + (n - 1) x a step (what it pushes, what it answers), a
// host of shards only that owns y sends n y. Both are equal at
//
//   x = (n - k) M / (g n + k n - 2 k),  y = (M - g x) / k
//
// which for g = n is Theorem 1 of Y. Jiang et al., "A unified architecture for accelerating
// distributed DNN training in heterogeneous GPU/CPU clusters", OSDI 2020. Where that leaves nothing
// for a kind of host (k >= n: nothing for shared ones; n = 1: all stays on the workers' host) its
// share is 0. All shards of a host get the same. Where a host is unknown ("") all shards do.
std::vector<double> ShardShares(absl::Span<const std::string> worker_hosts,
                                absl::Span<const std::string> shard_hosts);
std::vector<double> EqualShares(int shard_count);

// Sets every chunk's shard: the largest chunk first, onto the shard that is then least loaded for
// its share; ties go to the lower index. A shard without share gets nothing. Deterministic.
// `shares` are >= 0, one at least is > 0.
void PlaceChunks(absl::Span<v1::PlanChunk> chunks, absl::Span<const double> shares);
void PlaceChunks(absl::Span<v1::PlanChunk> chunks, int shard_count);

// The largest ratio of a shard's part of all bytes to its share.
double Imbalance(absl::Span<const v1::PlanChunk> chunks, absl::Span<const double> shares);

// The chunks of every parameter in order, cut and placed. None is larger than `chunk_bytes`; they
// are cut finer, by halves, until no shard has more than kImbalanceMax times its share, but never
// finer than limits::kChunkBytesMin or into more than `chunks_max`. A model so small that
// this is not enough is cut in the way that comes closest: 2 values cannot be spread over 16
// shards. A chunk begins at a multiple of 64 bytes of its parameter if `chunk_bytes` is one.
//
// `frozen`: by parameter, or empty for none. What is frozen causes no traffic: it is spread by
// shares too, but apart from the rest, not balanced beyond that, and only over shards that have
// something to train: the others would not know how far the job is.
std::vector<v1::PlanChunk> CutAndPlaceChunks(const v1::Graph& graph, int64_t chunk_bytes,
                                             absl::Span<const double> shares,
                                             const std::vector<bool>& frozen = {},
                                             int64_t chunks_max = limits::kChunksMax);

}  // namespace muster
