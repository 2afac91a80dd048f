// Tensors that store one byte per element, such as pixels. They take a quarter of the memory, and
// of the transfer to a GPU. A table has the value of each byte, so that every device decodes the
// same bits.
#pragma once

#include <array>
#include <cstdint>

namespace muster::kernels {

using ByteValues = std::array<float, 256>;

// y[i] = values[x[i]] for i in [0, n), in parallel. Buffers do not overlap.
void DecodeBytes(float* y, const uint8_t* x, int64_t n, const ByteValues& values);

}  // namespace muster::kernels
