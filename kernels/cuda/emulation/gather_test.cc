#include "kernels/cuda/gather.h"

#include <cstdlib>

#include "kernels/cuda/emulation/device_memory.h"

namespace muster::kernels::cuda::emulation::gather_test {
namespace {

struct Case {
  GatherShape shape;
  int keys;  // keys in use
};

// The cases have keys with one slice, with a few, and with more slices than fit in one piece. Keys
// begin at the start of a piece or later, span whole pieces, and reach the end of all slices.
constexpr Case kCases[] = {
    {{.outer = 1, .size = 7, .inner = 8, .indices = 5, .allows_negative = false}, 7},
    {{.outer = 1, .size = 300, .inner = 3, .indices = 200, .allows_negative = false}, 300},
    {{.outer = 1, .size = 2, .inner = 20, .indices = 64 * 5 + 9, .allows_negative = false}, 2},
    {{.outer = 1, .size = 3, .inner = 5, .indices = 64 * 6, .allows_negative = false}, 1},
    {{.outer = 3, .size = 9, .inner = 4, .indices = 500, .allows_negative = true}, 5},
    {{.outer = 1, .size = 40, .inner = 300, .indices = 700, .allows_negative = false}, 4},
};

TEST(GatherTest, GradientsAreTheSumsOfTheirSlices) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.shape.indices << " of " << c.keys);
    const GatherShape& s = c.shape;
    const int64_t of_dy = s.outer * s.indices * s.inner, of_dx = s.outer * s.size * s.inner;
    std::vector<int32_t> index(s.indices);
    uint32_t random = 7;
    for (int32_t& i : index) {
      random = random * 1664525 + 1013904223;
      i = static_cast<int32_t>((random >> 8) % static_cast<uint32_t>(c.keys));
      if (s.allows_negative && random >> 31 == 1) i -= static_cast<int32_t>(s.size);
    }
    for (const Type type : {Type::kF32, Type::kBf16}) {
      const Floats dy = Rounded(Normals(of_dy, 1), type);
      std::vector<double> dx(of_dx);
      for (int64_t o = 0; o < s.outer; ++o) {
        for (int64_t i = 0; i < s.indices; ++i) {
          const int64_t key = index[i] < 0 ? index[i] + s.size : index[i];
          for (int64_t e = 0; e < s.inner; ++e) {
            dx[(o * s.size + key) * s.inner + e] += dy[(o * s.indices + i) * s.inner + e];
          }
        }
      }
      DeviceMemory dy_on(dy, type), index_on(index), dx_on(of_dx * Bytes(type));
      DeviceMemory workspace(GatherGradWorkspaceBytes(s));
      ASSERT_EQ(GatherGrad(dx_on.data(), dy_on.data(), index_on.ints(), type, s, workspace.data(),
                           nullptr),
                cudaSuccess);
      ExpectRounded(dx_on.Read(type), dx, type, s.indices);
    }
  }
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::gather_test
