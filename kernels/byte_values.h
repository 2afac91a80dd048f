// Tensors that store one byte per element, such as pixels. They take a quarter of the memory, and
// of the transfer to a GPU. A table has the value of each byte, so that every device decodes the
// same bits. There is one table, or one for each channel of planar images.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace muster::kernels {

using ByteValues = std::array<float, 256>;

// y[i] = tables[i / plane % tables.size()][x[i]] for i in [0, n), in parallel. Buffers do not
// overlap. `plane` is the number of elements of a channel; any number, >= 1, if there is one table.
void DecodeBytes(float* y, const uint8_t* x, int64_t n, std::span<const ByteValues> tables,
                 int64_t plane = 1);

}  // namespace muster::kernels
