// Conversions between element types, in parallel, bandwidth-bound. Numbers are rounded to the
// nearest bf16 or f16, ties to even. Numbers that are too large become infinite. Infinities and
// subnormals are kept; NaN becomes some NaN.
#pragma once

#include <cstdint>

namespace muster::kernels {

enum class ElementType { kF32, kBf16, kF16, kI32 };

int64_t ElementBytes(ElementType type);

// Converts n elements of x to type `to`. A float becomes i32 by truncation towards 0; NaN becomes
// 0, and a number out of range becomes the nearest i32. y may be x if the types have the same
// width. Otherwise the buffers do not overlap.
void Convert(void* y, ElementType to, const void* x, ElementType from, int64_t n);

// Exports a gradient from the executor: to = factor * from (kAssign), or to += factor * from
// (kAdd). Requires: `type` is floating. `to` may be `from` if `type` is f32.
enum class ExportMode { kAssign, kAdd };
void ExportGradient(float* to, const void* from, ElementType type, float factor, ExportMode mode,
                    int64_t n);

}  // namespace muster::kernels
