// Conversions among element types, in parallel, bandwidth-bound. To bf16 and f16: to the nearest,
// ties to even; too large becomes infinity; infinities, NaN (as some NaN) and subnormals are kept.
#pragma once

#include <cstdint>

namespace muster::kernels {

enum class ElementType { kF32, kBf16, kF16, kI32 };

int64_t ElementBytes(ElementType type);

// y[n] = x[n] as `to`. A number becomes i32 by truncation towards 0; NaN becomes 0, and what does
// not fit the nearest i32. Types of the same width may share memory (y == x); nothing overlaps
// otherwise.
void Convert(void* y, ElementType to, const void* x, ElementType from, int64_t n);

// How a gradient leaves the executor: to = factor from, or to += factor from. `type` is a floating
// one. `to` may be `from` in f32.
enum class ExportMode { kAssign, kAdd };
void ExportGradient(float* to, const void* from, ElementType type, float factor, ExportMode mode,
                    int64_t n);

}  // namespace muster::kernels
