#include "lib/graph/attributes.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/graph_text.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::attributes_test {
namespace {

using ::testing::ElementsAre;

v1::Node Node(const char* text) { return ParseGraph(std::string("y = ") + text).nodes(0); }

TEST(AttributesTest, ComeFromTheNodeOrFromTheTable) {
  EXPECT_EQ(NumberAttribute(Node("LayerNorm(x, g)"), "epsilon"), 1e-5);
  EXPECT_EQ(NumberAttribute(Node("LayerNorm(x, g) epsilon=0.25"), "epsilon"), 0.25);
  EXPECT_EQ(IntegerAttribute(Node("Conv2d(x, w)"), "groups"), 1);
  EXPECT_EQ(IntegerAttribute(Node("Conv2dRelu(x, w) groups=4"), "groups"), 4);
  EXPECT_EQ(WordAttribute(Node("Constant() shape=[] value=0.5"), "dtype"), "f32");
  EXPECT_THAT(IntegersAttribute(Node("Conv2d(x, w)"), "padding"), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(NumbersAttribute(Node("Constant() values=[1.0, 2.5]"), "values"),
              ElementsAre(1, 2.5));
  EXPECT_FALSE(HasAttribute(Node("Gelu(x)"), "exact"));
}

TEST(AttributesTest, APartIsTheWholeUnlessGiven) {
  const DimensionPart own = PartAttributes(Node("Embedding(ids, table)"), 5);
  EXPECT_EQ(own.first, 0);
  EXPECT_EQ(own.whole, 5);
  const DimensionPart part = PartAttributes(Node("Embedding(ids, table) first=3 whole=9"), 5);
  EXPECT_EQ(part.first, 3);
  EXPECT_EQ(part.whole, 9);
}

TEST(AttributesTest, PoolingStridesAreItsKernelUnlessGiven) {
  const Window window = PoolingWindow(Node("MaxPool2d(x) kernel=[3, 2] padding=[1, 0, 2, 1]"));

  EXPECT_THAT(window.kernel, ElementsAre(3, 2));
  EXPECT_THAT(window.strides, ElementsAre(3, 2));
  EXPECT_THAT(window.padding_before, ElementsAre(1, 0));
  EXPECT_THAT(window.padding_after, ElementsAre(2, 1));
  EXPECT_THAT(PoolingWindow(Node("AveragePool2d(x) kernel=[3, 2] strides=[1, 1]")).strides,
              ElementsAre(1, 1));
}

TEST(AttributesTest, AConvolutionsKernelSizeComesFromTheWeight) {
  const Window window =
      ConvolutionWindow(Node("Conv2d(x, w) strides=[1, 2] dilations=[3, 4]"), {8, 4, 5, 7});

  EXPECT_THAT(window.kernel, ElementsAre(5, 7));
  EXPECT_THAT(window.strides, ElementsAre(1, 2));
  EXPECT_THAT(window.dilations, ElementsAre(3, 4));
}

TEST(AttributesTest, AxesCountFromTheFrontInOrder) {
  EXPECT_EQ(AxisAttribute(Node("Concat(x) axis=-1"), 4), 3);
  EXPECT_THAT(AxesAttribute(Node("ReduceSum(x) axes=[-1, 0]"), 3), ElementsAre(0, 2));
}

TEST(AttributesTest, SlicesAreClampedAsNumpyDoes) {
  const SliceRange range = SliceAttributes(
      Node("Slice(x) axes=[2, 0] starts=[-3, 1] ends=[100, -1] steps=[2, 1]"), {5, 6, 7});

  EXPECT_THAT(range.starts, ElementsAre(1, 0, 4));
  EXPECT_THAT(range.steps, ElementsAre(1, 1, 2));
  EXPECT_THAT(range.lengths, ElementsAre(3, 6, 2));
}

TEST(AttributesTest, AttentionScalesByTheRootOfAHeadsChannels) {
  EXPECT_DOUBLE_EQ(AttentionScale(Node("Attention(q, k, v) heads=4"), {2, 3, 64}), 0.25);
  EXPECT_DOUBLE_EQ(AttentionScale(Node("AttentionGrad(q) heads=4 scale=0.5"), {2, 3, 64}), 0.5);
}

TEST(AttributesTest, WithoutAnIgnoreIndexAllTargetsCount) {
  EXPECT_EQ(IgnoreIndex(Node("CorrectCount(x, t)")), absl::nullopt);
  EXPECT_EQ(IgnoreIndex(Node("CorrectCount(x, t) ignore_index=-100")), -100);
}

}  // namespace
}  // namespace muster::attributes_test
