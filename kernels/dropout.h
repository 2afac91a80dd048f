// Dropout by a counter-based generator. Whether an element is kept depends only on the seed, the
// step, the layer's salt and the element's position in the global batch. So forward, gradient,
// recomputation, other devices and other splits of the batch use the same mask.
//   Source: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov, "Dropout", JMLR 15, 2014.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct DropoutKey {
  uint64_t seed;
  int64_t step;  // only the low 32 bits are used
  int64_t salt;  // in [0, 2^31)
};

// Returns the `stream` argument of RandomWords(seed, stream, index) in kernels/philox.h. The top
// bit separates it from streams of other purposes.
inline uint64_t DropoutStream(const DropoutKey& key) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(key.salt) << 32 |
         static_cast<uint32_t>(key.step);
}

// Returns the smallest 24-bit random number for which an element is kept. The number of element e
// is word e mod 4 of RandomWords(seed, DropoutStream(key), e / 4), shifted right by 8.
inline uint32_t DropoutThreshold(float rate) {
  const float exact = rate * 0x1p24f;
  const uint32_t floor = static_cast<uint32_t>(exact);
  return floor + (static_cast<float>(floor) < exact);
}

// y = element kept ? x / (1 - rate) : 0 for n elements, in parallel. `first_element` is the
// position of the first one in the global batch's tensor: the first sample's position times the
// elements of a sample. y may be x. Requires: `rate` is in [0, 1). The gradient is the same
// function of dy. Bandwidth-bound with AVX-512, otherwise bound by the generator.
void Dropout(float* y, const float* x, int64_t n, int64_t first_element, float rate,
             const DropoutKey& key);

// Dropout of rows that are parts of longer rows: x has the columns [first, first + columns) of rows
// of `whole` elements. `first_element` is the position of the first row in the global batch's
// tensor of whole rows.
struct DropoutPart {
  int64_t columns;
  int64_t first;
  int64_t whole;
};
void DropoutOfPart(float* y, const float* x, int64_t rows, const DropoutPart& part,
                   int64_t first_element, float rate, const DropoutKey& key);

}  // namespace muster::kernels
