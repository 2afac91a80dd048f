// Tensors that are stored with a byte an element, as pixels are: a quarter of the memory and of the
// way to a GPU. What a byte stands for is a table's, so that the values are the same to the bit
// wherever they are decoded.
#pragma once

#include <array>
#include <cstdint>

namespace muster::kernels {

using ByteValues = std::array<float, 256>;

// y[i] = values[x[i]] for i in [0, n), in parallel. Nothing overlaps.
void DecodeBytes(float* y, const uint8_t* x, int64_t n, const ByteValues& values);

}  // namespace muster::kernels
