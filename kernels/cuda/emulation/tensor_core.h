// Implements the special instructions of tensor_core.cuh as loops, on the same fragments. Sums in
// f32 are of products in order; a tensor core has its own order and roundings.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/emulation/block.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace emulation {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Gives access to the memory that each lane points to, while all lanes wait: f(lane) is the address
// of that lane.
template <typename F>
void WithPointers(const void* own, F f) {
  Exchange(kAllLanes, reinterpret_cast<uintptr_t>(own));
  f([](int lane) { return reinterpret_cast<const void*>(Received(kAllLanes, lane)); });
  Exchange(kAllLanes, 0);
}

// Element `half` of a register that holds two.
template <typename T>
float Half(uint32_t word, int half) {
  const auto bits = static_cast<uint16_t>(word >> 16 * half);
  T element;
  std::memcpy(&element, &bits, sizeof(element));
  return ToFloat(element);
}

}  // namespace emulation

template <typename T>
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t own[6] = {a[0], a[1], a[2], a[3], b0, b1};
  emulation::WithPointers(own, [&](auto of_lane) {
    const auto word = [&](int lane, int i) {
      return static_cast<const uint32_t*>(of_lane(lane))[i];
    };
    const int g = emulation::Lane() / 4, t = emulation::Lane() % 4;
    for (int e = 0; e < 4; ++e) {
      const int below = e / 2, column = 2 * t + e % 2;  // row g or g + 8
      for (int k = 0; k < 16; ++k) {
        const int holder = k % 8 / 2, right = k / 8;  // columns 8 .. 15 of a are in registers 2, 3
        c[e] += emulation::Half<T>(word(g * 4 + holder, below + 2 * right), k % 2) *
                emulation::Half<T>(word(column * 4 + holder, 4 + right), k % 2);
      }
    }
  });
}

inline void LoadMatrices(uint32_t (&to)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  emulation::WithPointers(row, [&](auto of_lane) {
    const int g = emulation::Lane() / 4, t = emulation::Lane() % 4;
    for (int i = 0; i < 4; ++i) to[i] = static_cast<const uint32_t*>(of_lane(8 * i + g))[t];
  });
}

inline void LoadMatricesTransposed(uint32_t (&to)[4], const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) std::abort();
  emulation::WithPointers(row, [&](auto of_lane) {
    const int g = emulation::Lane() / 4, t = emulation::Lane() % 4;
    for (int i = 0; i < 4; ++i) {
      const uint32_t first = static_cast<const uint16_t*>(of_lane(8 * i + 2 * t))[g];
      const uint32_t second = static_cast<const uint16_t*>(of_lane(8 * i + 2 * t + 1))[g];
      to[i] = first | second << 16;
    }
  });
}

// A copy happens at once or when it is awaited, depending on the order of threads: a kernel must
// work with both.
inline void CopyAsync(void* to, const void* from, bool is_there) {
  emulation::CopyLater(to, is_there ? from : nullptr);
}
inline void AwaitCopies() { emulation::AwaitCopies(); }

inline float Exp2(float x) { return x < -126 ? 0 : std::exp2(x); }

inline void* LaunchedSharedMemory() { return emulation::SharedMemory(); }

}  // namespace muster::kernels::cuda
