// Tensors side by side along one dimension, and back. In parallel, bandwidth-bound.
//
// Part i has `rows` rows (the product of the dimensions before the axis) of row_bytes[i] bytes (the
// axis and what follows it); the whole has as many rows of the sum of them.
#pragma once

#include <cstdint>
#include <span>

namespace muster::kernels {

// Nothing overlaps.
void Concat(void* whole, std::span<const void* const> parts, std::span<const int64_t> row_bytes,
            int64_t rows);
void Split(std::span<void* const> parts, const void* whole, std::span<const int64_t> row_bytes,
           int64_t rows);

}  // namespace muster::kernels
