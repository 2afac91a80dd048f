#include "kernels/layout.h"

#include "kernels/comparison.h"
#include "kernels/images.h"

namespace muster::kernels::layout_test {
namespace {

TEST(LayoutTest, ATensorSurvivesTheWayThroughEveryLayout) {
  for (int64_t channels : {1, 3, 16, 17, 32}) {
    const Floats x = Normals(2 * channels * 3 * 5, 1);
    for (const Layout& layout : ImageLayouts({2, channels, 3, 5})) {
      EXPECT_EQ(FromLayout(ToLayout(x, layout), layout, x.size()), x) << channels;
    }
  }
}

TEST(LayoutTest, LayoutsOfOneOrderAreEqualAndThoseOfAnotherAreNot) {
  const std::vector<Layout> some = ImageLayouts({2, 5, 3, 5}), same = ImageLayouts({2, 5, 3, 5});
  for (size_t i = 0; i < some.size(); ++i) {
    for (size_t j = 0; j < same.size(); ++j) EXPECT_EQ(some[i] == same[j], i == j);
  }
  EXPECT_TRUE(Layout().is_row_major());
  EXPECT_EQ(Layout().bytes(100), 100);
}

TEST(LayoutTest, ThePlacesBeyondTheLastChannelAreZero) {
  const Layout blocked = ImageLayouts({1, 5, 1, 1})[1];
  EXPECT_TRUE(blocked.is_padded());

  const Floats x = ToLayout({1, 2, 3, 4, 5}, blocked);

  ASSERT_EQ(x.size(), 16);
  EXPECT_EQ(x, (Floats{1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace muster::kernels::layout_test
