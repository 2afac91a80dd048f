// Dropout by a counter-based generator: whether an element is kept is a function of the seed, the
// step, the layer's salt and the element's position in the global batch alone. Forward, gradient,
// recomputation, other devices and other splits of the batch all see the same mask.
//   Source: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov, "Dropout", JMLR 15, 2014.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct DropoutKey {
  uint64_t seed;
  int64_t step;  // its low 32 bits count
  int64_t salt;  // in [0, 2^31)
};

// The `stream` argument of RandomWords(seed, stream, index) in kernels/philox.h. Streams of other
// purposes have no top bit.
inline uint64_t DropoutStream(const DropoutKey& key) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(key.salt) << 32 |
         static_cast<uint32_t>(key.step);
}

// The 24-bit number from which on an element is kept: element e is dropped where word e mod 4 of
// RandomWords(seed, DropoutStream(key), e / 4), shifted right by 8, is less.
inline uint32_t DropoutThreshold(float rate) {
  const float exact = rate * 0x1p24f;
  const uint32_t floor = static_cast<uint32_t>(exact);
  return floor + (static_cast<float>(floor) < exact);
}

// y = element kept ? x / (1 - rate) : 0 for n elements, of which the first stands at
// `first_element` of the global batch's tensor (first sample times elements of a sample). y may be
// x. `rate` in [0, 1). The gradient is the same function of dy. In parallel. Bandwidth-bound with
// AVX-512, else bound by the generator.
void Dropout(float* y, const float* x, int64_t n, int64_t first_element, float rate,
             const DropoutKey& key);

}  // namespace muster::kernels
