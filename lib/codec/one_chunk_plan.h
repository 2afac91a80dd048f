// Formats for a job with a single chunk, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/codec/codec.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// A bsp job with one parameter, all in one chunk.
inline v1::JobPlan OneChunkPlan(const v1::Compression& compression,
                                const std::vector<int64_t>& shape) {
  v1::JobPlan plan;
  *plan.mutable_spec()->mutable_sync()->mutable_compression() = compression;
  v1::Parameter& parameter = *plan.mutable_graph()->add_parameters();
  parameter.set_name("weight");
  int64_t elements = 1;
  for (const int64_t dimension : shape) {
    parameter.add_shape(dimension);
    elements *= dimension;
  }
  plan.add_chunks()->set_elements(elements);
  return plan;
}

inline v1::Compression CompressionOf(v1::CompressionKind kind, double ratio = 0, int rank = 0) {
  v1::Compression compression;
  compression.set_kind(kind);
  compression.set_ratio(ratio);
  compression.set_rank(rank);
  return compression;
}

// A codec's name in tests, and its format.
struct NamedFormat {
  std::string name;
  WireFormat format;
};

// Every codec, for a matrix of the given shape. For small matrices the format may be raw, because
// compression would gain nothing.
inline std::vector<NamedFormat> FormatsOf(int64_t rows, int64_t columns) {
  auto format = [&](const v1::Compression& compression) {
    return PushFormat(OneChunkPlan(compression, {rows, columns}), ChunkId(0));
  };
  return {{"none", format(CompressionOf(v1::COMPRESSION_NONE))},
          {"fp16", format(CompressionOf(v1::COMPRESSION_FP16))},
          {"bf16", format(CompressionOf(v1::COMPRESSION_BF16))},
          {"int8", format(CompressionOf(v1::COMPRESSION_INT8))},
          {"topk", format(CompressionOf(v1::COMPRESSION_TOPK, 0.01))},
          {"onebit", format(CompressionOf(v1::COMPRESSION_ONEBIT))},
          {"powersgd", format(CompressionOf(v1::COMPRESSION_POWERSGD, 0, 4))}};
}

}  // namespace muster
