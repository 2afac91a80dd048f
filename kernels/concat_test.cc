#include "kernels/concat.h"

#include <array>
#include <numeric>

#include "kernels/comparison.h"

namespace muster::kernels::concat_test {
namespace {

TEST(ConcatTest, ConcatJoinsPartsAndSplitSeparatesThem) {
  for (const auto& [rows, sizes] : std::vector<std::pair<int64_t, std::array<int64_t, 3>>>{
           {1, {1, 1, 1}}, {5, {3, 0, 2}}, {3, {1000, 77, 30000}}, {20000, {1, 2, 3}}}) {
    for (int threads : {1, 3}) {
      SetThreads(threads);
      std::array<Floats, 3> parts, apart;
      std::array<const void*, 3> from;
      std::array<void*, 3> to;
      std::array<int64_t, 3> bytes;
      int64_t width = 0;
      for (int i = 0; i < 3; ++i) {
        parts[i] = Normals(rows * sizes[i], i);
        apart[i] = Floats(parts[i].size(), NAN);
        from[i] = parts[i].data();
        to[i] = apart[i].data();
        bytes[i] = sizes[i] * sizeof(float);
        width += sizes[i];
      }
      Floats whole(rows * width, NAN);

      Concat(whole.data(), from, bytes, rows);
      Split(to, whole.data(), bytes, rows);

      EXPECT_EQ(apart, parts);
      EXPECT_EQ(whole[(rows - 1) * width], parts[0][(rows - 1) * sizes[0]]);
      EXPECT_EQ(whole.back(), parts[2].back());
      if (rows > 1) {
        EXPECT_EQ(whole[width], parts[0][sizes[0]]);
      }
    }
  }
  SetThreads(1);
}

}  // namespace
}  // namespace muster::kernels::concat_test
