// Implements PushFormat and ValuesFormat of codec.h.
#include <algorithm>

#include "lib/codec/codec.h"
#include "lib/codec/int8_codec.h"
#include "lib/codec/onebit_codec.h"
#include "lib/codec/powersgd_codec.h"
#include "lib/codec/topk_codec.h"

namespace muster {
namespace {

constexpr double kRatioDefault = 0.01;
constexpr int kRankDefault = 4;

WireFormat Raw(WireDType dtype, int64_t elements) {
  const int64_t element_bytes = dtype == WireDType::kF32 ? 4 : 2;
  return {.dtype = dtype, .elements = elements, .bytes = elements * element_bytes};
}

WireFormat Packed(WireCodec codec, int64_t elements, int64_t bytes) {
  return {.dtype = WireDType::kNone, .codec = codec, .elements = elements, .bytes = bytes};
}

WireFormat TopK(double ratio, int64_t elements) {
  const int64_t kept = KeptElements(ratio > 0 ? ratio : kRatioDefault, elements);
  WireFormat format = Packed(WireCodec::kTopK, elements, TopKBytes(elements, kept));
  format.kept = kept;
  return format;
}

WireFormat PowerSgd(int wanted_rank, const v1::Parameter& parameter, const v1::PlanChunk& chunk) {
  const auto [rows, columns] = MatrixOf(parameter, chunk);
  const int64_t rank =
      std::min({int64_t{wanted_rank > 0 ? wanted_rank : kRankDefault}, rows, columns});
  WireFormat format =
      Packed(WireCodec::kPowerSgd, chunk.elements(), PowerSgdBytes(rows, columns, rank));
  format.rows = rows;
  format.columns = columns;
  format.rank = static_cast<int>(rank);
  return format;
}

WireFormat Compressed(const v1::Compression& compression, const v1::Parameter& parameter,
                      const v1::PlanChunk& chunk) {
  const int64_t elements = chunk.elements();
  switch (compression.kind()) {
    case v1::COMPRESSION_FP16:
      return Raw(WireDType::kF16, elements);
    case v1::COMPRESSION_BF16:
      return Raw(WireDType::kBf16, elements);
    case v1::COMPRESSION_INT8:
      return Packed(WireCodec::kInt8, elements, Int8Bytes(elements));
    case v1::COMPRESSION_TOPK:
      return TopK(compression.ratio(), elements);
    case v1::COMPRESSION_ONEBIT:
      return Packed(WireCodec::kOneBit, elements, OneBitBytes(elements));
    case v1::COMPRESSION_POWERSGD:
      return PowerSgd(compression.rank(), parameter, chunk);
    default:
      return Raw(WireDType::kF32, elements);
  }
}

// Returns whether the parameter is sent uncompressed whatever codec the job chose.
bool TravelsAsItIs(const v1::JobPlan& plan, const v1::Parameter& parameter) {
  const v1::SyncMode mode = plan.spec().sync().mode();
  return mode == v1::LOCAL_SGD || mode == v1::ALLREDUCE || parameter.has_statistic_momentum() ||
         parameter.shape_size() <= 1;
}

}  // namespace

WireFormat PushFormat(const v1::JobPlan& plan, ChunkId chunk) {
  const v1::PlanChunk& cut = plan.chunks(ToInt(chunk));
  const v1::Parameter& parameter = plan.graph().parameters(cut.parameter());
  const WireFormat plain = Raw(WireDType::kF32, cut.elements());
  if (TravelsAsItIs(plan, parameter)) return plain;
  const WireFormat format = Compressed(plan.spec().sync().compression(), parameter, cut);
  return format.bytes < plain.bytes ? format : plain;
}

WireFormat ValuesFormat(const v1::JobPlan& plan, ChunkId chunk) {
  const v1::PlanChunk& cut = plan.chunks(ToInt(chunk));
  if (TravelsAsItIs(plan, plan.graph().parameters(cut.parameter()))) {
    return Raw(WireDType::kF32, cut.elements());
  }
  switch (plan.spec().sync().values()) {
    case v1::VALUES_FP16:
      return Raw(WireDType::kF16, cut.elements());
    case v1::VALUES_BF16:
      return Raw(WireDType::kBf16, cut.elements());
    default:
      return Raw(WireDType::kF32, cut.elements());
  }
}

}  // namespace muster
