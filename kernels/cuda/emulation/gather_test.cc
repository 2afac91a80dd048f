#include "kernels/cuda/gather.h"

#include <cstdlib>

#include "kernels/cuda/emulation/device_memory.h"
#include "kernels/embedding.h"

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

// A part [begin, end) of the rows of a table.
struct Part {
  int64_t begin, end;
};

// The parts' indices take no piece, a part of one, and several. Channels take 2, 4 and 16 bytes at
// once.
TEST(GatherTest, APartOfATableHasItsRowsAndTheirGradients) {
  constexpr int64_t kRows = 300;
  for (const int64_t ids : {5, 64 * 6 + 9}) {
    for (const int64_t channels : {3, 8}) {
      std::vector<int32_t> index = RandomIds(ids, /*limit=*/40, 3);
      index[0] = kRows - 1;
      for (const Part& part : {Part{0, 1}, {1, 23}, {23, 257}, {257, kRows}}) {
        const int64_t own = part.end - part.begin;
        const EmbeddingShape twin = {
            .rows = ids, .vocabulary = own, .channels = channels, .first = part.begin};
        const GatherShape shape = {.outer = 1,
                                   .size = own,
                                   .inner = channels,
                                   .indices = ids,
                                   .allows_negative = false,
                                   .first = part.begin,
                                   .whole = kRows};
        ForEveryRun([&](Type type) {
          SCOPED_TRACE(testing::Message()
                       << ids << " ids, " << channels << " channels, from " << part.begin);
          const Floats table = Rounded(Normals(own * channels, 1), type);
          const Floats dy = Rounded(Normals(ids * channels, 2), type);
          Floats y(ids * channels), dtable(own * channels);
          Embedding(y.data(), index.data(), table.data(), twin);
          EmbeddingGrad(dtable.data(), dy.data(), index.data(), twin);

          DeviceMemory table_on(table, type), dy_on(dy, type), index_on(index);
          DeviceMemory y_on(ids * channels * Bytes(type)), dtable_on(own * channels * Bytes(type));
          DeviceMemory workspace(GatherGradWorkspaceBytes(shape));
          DeviceMemory out_of_range(std::vector<int32_t>(2));
          ASSERT_EQ(Gather(y_on.data(), table_on.data(), index_on.ints(), shape,
                           static_cast<int>(Bytes(type)), out_of_range.out_of_range(), nullptr),
                    cudaSuccess);
          ASSERT_EQ(GatherGrad(dtable_on.data(), dy_on.data(), index_on.ints(), type, shape,
                               workspace.data(), nullptr),
                    cudaSuccess);
          EXPECT_EQ(y_on.Read(type), y);
          ExpectRounded(dtable_on.Read(type), Wide(dtable), type, ids);
          EXPECT_EQ(out_of_range.out_of_range()->found, 0);
        });
      }
    }
  }
}

TEST(GatherTest, APartReportsAnIdThatNoPartHas) {
  const GatherShape shape = {.outer = 1,
                             .size = 2,
                             .inner = 1,
                             .indices = 2,
                             .allows_negative = false,
                             .first = 3,
                             .whole = 7};
  for (const int32_t id : {-1, 7}) {
    DeviceMemory table(Floats{1, 2}, Type::kF32), index(std::vector<int32_t>{6, id}), y(8);
    DeviceMemory out_of_range(std::vector<int32_t>(2)), workspace(GatherGradWorkspaceBytes(shape));
    ASSERT_EQ(Gather(y.data(), table.data(), index.ints(), shape, 4, out_of_range.out_of_range(),
                     nullptr),
              cudaSuccess);
    EXPECT_EQ(out_of_range.out_of_range()->found, 1);
    EXPECT_EQ(out_of_range.out_of_range()->id, id);
    // The derivative writes only where it has memory; DeviceMemory checks that.
    DeviceMemory dtable(8);
    ASSERT_EQ(GatherGrad(dtable.data(), y.data(), index.ints(), Type::kF32, shape, workspace.data(),
                         nullptr),
              cudaSuccess);
  }
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::gather_test
