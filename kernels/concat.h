// Joins tensors along one dimension, and splits them. In parallel, bandwidth-bound.
//
// Part i has `rows` rows of row_bytes[i] bytes. `rows` is the product of the dimensions before the
// axis; a row spans the axis and the dimensions after it. Row r of the whole tensor consists of row
// r of each part, one after the other.
#pragma once

#include <cstdint>
#include <span>

namespace muster::kernels {

// Buffers do not overlap.
void Concat(void* whole, std::span<const void* const> parts, std::span<const int64_t> row_bytes,
            int64_t rows);
void Split(std::span<void* const> parts, const void* whole, std::span<const int64_t> row_bytes,
           int64_t rows);

}  // namespace muster::kernels
