#include "kernels/conversion.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/conversion_loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_level.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;
constexpr int64_t kBlock = 1024;  // floats in the buffer between two types

const ConversionLoops& Loops() {
  return ForThisProcessor(baseline::kConversionLoops, avx2::kConversionLoops,
                          avx512::kConversionLoops);
}

// Converts elements [begin, end) of x to floats.
void Widen(float* y, const void* x, ElementType from, int64_t begin, int64_t end) {
  const int64_t n = end - begin;
  switch (from) {
    case ElementType::kF32:
      std::memmove(y, static_cast<const float*>(x) + begin, n * sizeof(float));
      return;
    case ElementType::kBf16:
      return Loops().bf16_to_f32(y, static_cast<const uint16_t*>(x) + begin, n);
    case ElementType::kF16:
      return Loops().f16_to_f32(y, static_cast<const uint16_t*>(x) + begin, n);
    case ElementType::kI32:
      return Loops().i32_to_f32(y, static_cast<const int32_t*>(x) + begin, n);
  }
}

// Converts floats to elements [begin, end) of y.
void Narrow(void* y, ElementType to, const float* x, int64_t begin, int64_t end) {
  const int64_t n = end - begin;
  switch (to) {
    case ElementType::kF32:
      std::memmove(static_cast<float*>(y) + begin, x, n * sizeof(float));
      return;
    case ElementType::kBf16:
      return Loops().f32_to_bf16(static_cast<uint16_t*>(y) + begin, x, n);
    case ElementType::kF16:
      return Loops().f32_to_f16(static_cast<uint16_t*>(y) + begin, x, n);
    case ElementType::kI32:
      return Loops().f32_to_i32(static_cast<int32_t*>(y) + begin, x, n);
  }
}

}  // namespace

int64_t ElementBytes(ElementType type) {
  return type == ElementType::kBf16 || type == ElementType::kF16 ? 2 : 4;
}

void Convert(void* y, ElementType to, const void* x, ElementType from, int64_t n) {
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    if (from == to) {
      const int64_t bytes = ElementBytes(to);
      std::memmove(static_cast<char*>(y) + begin * bytes,
                   static_cast<const char*>(x) + begin * bytes, (end - begin) * bytes);
    } else if (from == ElementType::kF32) {
      Narrow(y, to, static_cast<const float*>(x) + begin, begin, end);
    } else if (to == ElementType::kF32) {
      Widen(static_cast<float*>(y) + begin, x, from, begin, end);
    } else {
      float block[kBlock];
      for (; begin < end; begin += kBlock) {
        const int64_t stop = std::min(begin + kBlock, end);
        Widen(block, x, from, begin, stop);
        Narrow(y, to, block, begin, stop);
      }
    }
  });
}

void ExportGradient(float* to, const void* from, ElementType type, float factor, ExportMode mode,
                    int64_t n) {
  const auto loop = mode == ExportMode::kAssign ? Loops().scale : Loops().add_scaled;
  ParallelFor(n, kGrain, [=](int64_t begin, int64_t end) {
    if (type == ElementType::kF32) {
      loop(to + begin, static_cast<const float*>(from) + begin, factor, end - begin);
      return;
    }
    float block[kBlock];
    for (; begin < end; begin += kBlock) {
      const int64_t stop = std::min(begin + kBlock, end);
      Widen(block, from, type, begin, stop);
      loop(to + begin, block, factor, stop - begin);
    }
  });
}

}  // namespace muster::kernels
