#include "lib/graph/onnx/folding.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/onnx/onnx_model_builder.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster::folding_test {
namespace {

using Shape = std::vector<int64_t>;

FoldedValue Floats(Shape shape, std::vector<double> values) {
  return {true, {std::move(shape), std::move(values)}};
}

FoldedValue Integers(std::vector<double> values) {
  const Shape shape = {std::ssize(values)};
  return {false, {shape, std::move(values)}};
}

// Returns the size of the batch as a folded value.
FoldedValue Batch() {
  return FoldedValue::Make(false, true,
                           [](int p) -> absl::StatusOr<NumberArray> {
                             return NumberArray{{1}, {static_cast<double>(kProbeBatch[p])}};
                           })
      .value();
}

class FoldingTest : public testing::Test {
 protected:
  FoldingTest() {
    OnnxModelBuilder model;
    model.Input("x", {0, 1}).Node("Relu", {"x"}, {"y"});
    file_ = std::make_unique<OnnxFile>(OnnxFile::Open(model.Write("folding.onnx")).value());
  }

  absl::StatusOr<std::vector<FoldedValue>> Fold(
      const std::string& op, const std::vector<FoldedValue>& inputs,
      std::vector<std::pair<std::string, std::vector<int64_t>>> attributes = {}, int outputs = 1) {
    OnnxModelBuilder model;
    std::vector<std::string> names;
    for (int i = 0; i < outputs; ++i) names.push_back("y" + std::to_string(i));
    model.Node(op, std::vector<std::string>(inputs.size(), "x"), names, std::move(attributes));
    std::vector<const FoldedValue*> pointers;
    for (const FoldedValue& input : inputs) pointers.push_back(&input);
    return FoldNode(model.proto().graph().node(0), pointers, *file_, budget_);
  }

  NumberArray One(const std::string& op, const std::vector<FoldedValue>& inputs,
                  std::vector<std::pair<std::string, std::vector<int64_t>>> attributes = {}) {
    const auto outputs = Fold(op, inputs, std::move(attributes));
    EXPECT_TRUE(outputs.ok()) << op << ": " << outputs.status();
    return outputs.ok() ? outputs->front().at(0) : NumberArray{};
  }

  std::unique_ptr<OnnxFile> file_;
  FoldBudget budget_;
};

const FoldedValue kMatrix = Floats({2, 3}, {1, 2, 3, 4, 5, 6});

TEST_F(FoldingTest, ElementsBroadcast) {
  EXPECT_EQ(One("Add", {kMatrix, Floats({3}, {10, 20, 30})}),
            (NumberArray{{2, 3}, {11, 22, 33, 14, 25, 36}}));
  EXPECT_EQ(One("Div", {Integers({7, -7}), Integers({2})}), (NumberArray{{2}, {3, -3}}));
  EXPECT_EQ(One("Mod", {Integers({7, -7}), Integers({3})}), (NumberArray{{2}, {1, 2}}));
  EXPECT_EQ(One("Less", {kMatrix, Floats({1}, {3})}), (NumberArray{{2, 3}, {1, 1, 0, 0, 0, 0}}));
  EXPECT_EQ(One("Where", {Integers({1, 0, 1}), kMatrix, Floats({}, {9})}),
            (NumberArray{{2, 3}, {1, 9, 3, 4, 9, 6}}));
  EXPECT_FALSE(Fold("Add", {kMatrix, Floats({2}, {1, 2})}).ok());
  EXPECT_FALSE(Fold("Div", {Integers({1}), Integers({0})}).ok());
}

TEST_F(FoldingTest, NumbersFitTheirTypes) {
  using onnx::TensorProto;
  const FoldedValue x = Integers({300, -1, 2147483648.0, -129});
  EXPECT_EQ(One("Cast", {x}, {{"to", {TensorProto::INT32}}}).values,
            (std::vector<double>{300, -1, -2147483648.0, -129}));
  EXPECT_EQ(One("Cast", {x}, {{"to", {TensorProto::UINT8}}}).values,
            (std::vector<double>{44, 255, 0, 127}));
  EXPECT_EQ(One("Cast", {x}, {{"to", {TensorProto::INT8}}}).values,
            (std::vector<double>{44, -1, 0, 127}));
  EXPECT_EQ(One("Cast", {Floats({3}, {0.5, -1.75, 0})}, {{"to", {TensorProto::BOOL}}}).values,
            (std::vector<double>{1, 1, 0}));
  EXPECT_EQ(One("Cast", {Floats({2}, {2.75, -2.75})}, {{"to", {TensorProto::INT64}}}).values,
            (std::vector<double>{2, -2}));
  EXPECT_EQ(One("ReduceMean", {Integers({1, 2, 4})}), (NumberArray{{1}, {2}}));
  EXPECT_EQ(One("ReduceMean", {Integers({-1, -2, -4})}), (NumberArray{{1}, {-2}}));
}

TEST_F(FoldingTest, LargeNumbersDoNotOverflow) {
  const NumberArray plus = One("Softplus", {Floats({3}, {1000, -1000, 0})});
  EXPECT_EQ(plus.values[0], 1000);
  EXPECT_EQ(plus.values[1], 0);
  EXPECT_NEAR(plus.values[2], 0.693147, 1e-6);
  const FoldedValue first = Integers({0}), last = Integers({-1}), end = Integers({9e18});
  EXPECT_EQ(One("Slice", {kMatrix, first, end, Integers({1}), Integers({9.3e18})}),
            (NumberArray{{2, 1}, {1, 4}}));
  EXPECT_EQ(One("Slice", {kMatrix, last, Integers({-9e18}), Integers({1}), Integers({-9.3e18})}),
            (NumberArray{{2, 1}, {3, 6}}));
}

TEST_F(FoldingTest, FloatsAreRoundedAsTheyWouldBeInARun) {
  EXPECT_EQ(One("Add", {Floats({1}, {16777216}), Floats({1}, {1})}).values[0], 16777216);
}

TEST_F(FoldingTest, ShapesMoveElements) {
  EXPECT_EQ(One("Transpose", {kMatrix}, {{"perm", {1, 0}}}),
            (NumberArray{{3, 2}, {1, 4, 2, 5, 3, 6}}));
  EXPECT_EQ(
      One("Slice", {kMatrix, Integers({-1}), Integers({-9e18}), Integers({1}), Integers({-2})}),
      (NumberArray{{2, 2}, {3, 1, 6, 4}}));
  EXPECT_EQ(One("Tile", {kMatrix, Integers({1, 2})}),
            (NumberArray{{2, 6}, {1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}}));
  EXPECT_EQ(One("Concat", {kMatrix, kMatrix}, {{"axis", {1}}}).shape, (Shape{2, 6}));
  EXPECT_EQ(One("Pad", {Integers({1, 2}), Integers({1, 2})}), (NumberArray{{5}, {0, 1, 2, 0, 0}}));
  EXPECT_EQ(One("Trilu", {kMatrix}), (NumberArray{{2, 3}, {1, 2, 3, 0, 5, 6}}));
  EXPECT_EQ(One("CumSum", {kMatrix, Integers({1})}, {{"reverse", {1}}}),
            (NumberArray{{2, 3}, {6, 5, 3, 15, 11, 6}}));
  const auto parts = Fold("Split", {kMatrix, Integers({1, 2})}, {{"axis", {1}}}, 2);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ((*parts)[1].at(0), (NumberArray{{2, 2}, {2, 3, 5, 6}}));
}

TEST_F(FoldingTest, ElementsAreGatheredAndScattered) {
  EXPECT_EQ(One("Gather", {kMatrix, Integers({-1, 0})}, {{"axis", {1}}}),
            (NumberArray{{2, 2}, {3, 1, 6, 4}}));
  EXPECT_EQ(One("GatherND", {kMatrix, FoldedValue(false, {{2, 2}, {0, 2, 1, 0}})}),
            (NumberArray{{2}, {3, 4}}));
  EXPECT_EQ(One("GatherElements", {kMatrix, FoldedValue(false, {{1, 2}, {1, 0}})}),
            (NumberArray{{1, 2}, {4, 2}}));
  EXPECT_EQ(
      One("ScatterND", {kMatrix, FoldedValue(false, {{1, 1}, {1}}), Floats({1, 3}, {7, 8, 9})}),
      (NumberArray{{2, 3}, {1, 2, 3, 7, 8, 9}}));
  EXPECT_EQ(One("NonZero", {Integers({0, 3, 0, 4})}), (NumberArray{{1, 2}, {1, 3}}));
  EXPECT_FALSE(Fold("Gather", {kMatrix, Integers({2})}).ok());
  EXPECT_FALSE(Fold("GatherElements", {kMatrix, FoldedValue(false, {{1, 4}, {0, 0, 0, 0}})}).ok());
}

TEST_F(FoldingTest, AValueThatDependsOnTheBatchIsKnownForEachProbe) {
  const auto range = Fold("Range", {FoldedValue::Integer(0), Batch(), FoldedValue::Integer(1)});
  ASSERT_TRUE(range.ok()) << range.status();
  for (int p = 0; p < kProbes; ++p) EXPECT_EQ(std::ssize((*range)[0].at(p).values), kProbeBatch[p]);
  EXPECT_EQ((*range)[0].Shape().value()[0], (Extent{1, true}));
  const auto twice = Fold("Mul", {Batch(), Integers({2})});
  EXPECT_EQ((*twice)[0].Extents().value()[0], (Extent{2, true}));
  const auto none = Fold("Sub", {Batch(), Batch()});
  EXPECT_FALSE((*none)[0].depends_on_batch());
  EXPECT_FALSE(Fold("Mul", {Batch(), Batch()}).value()[0].Extents().ok());
}

TEST_F(FoldingTest, HostileConstantsAreErrors) {
  const FoldedValue empty(false, {{0}, {}});
  EXPECT_FALSE(Fold("Range", {empty, empty, empty}).ok());
  EXPECT_FALSE(Fold("Range", {Integers({0}), Integers({1e15}), Integers({1})}).ok());
  EXPECT_FALSE(Fold("ConstantOfShape", {Integers({1e9, 1e9, 1e9})}).ok());
  EXPECT_FALSE(Fold("Expand", {kMatrix, Integers({1e9, 2, 3})}).ok());
  EXPECT_FALSE(Fold("Tile", {kMatrix, Integers({-1, 2})}).ok());
  EXPECT_FALSE(Fold("Reshape", {kMatrix, Integers({-2, -3})}).ok());
  EXPECT_FALSE(
      Fold("Slice", {kMatrix, Integers({0}), Integers({1}), Integers({0}), Integers({0})}).ok());
  EXPECT_FALSE(Fold("CumSum", {kMatrix, empty}).ok());
  EXPECT_FALSE(Fold("OneHot", {Integers({1}), Integers({3}), empty}).ok());
  EXPECT_FALSE(Fold("Gather", {kMatrix}).ok());
  EXPECT_FALSE(Fold("Transpose", {kMatrix}, {{"perm", {0, 0}}}).ok());
  EXPECT_FALSE(Fold("Slice", {kMatrix, Integers({1, 1}), Integers({2, 2}), Integers({0, 0})}).ok());
  EXPECT_FALSE(Fold("GatherND", {kMatrix, FoldedValue(false, {{2, 0}, {}})}).ok());
  EXPECT_FALSE(Fold("Tile", {Integers({1}), Integers({9e18})}).ok());
  EXPECT_FALSE(Fold("Tile", {kMatrix, Integers({1e12, 1e12})}).ok());
  EXPECT_FALSE(Fold("Concat", {kMatrix, Floats({1, 2}, {1, 2})}).ok());
  EXPECT_FALSE(Fold("Pad", {Integers({1}), Integers({9e18, 9e18})}).ok());
  EXPECT_FALSE(Fold("Reshape", {kMatrix, Integers({9e18, 9e18})}).ok());
  EXPECT_FALSE(Fold("Split", {kMatrix, Integers({9e18, 9e18})}, {{"axis", {1}}}, 2).ok());
}

TEST_F(FoldingTest, EmptyConstantsTakeNoTime) {
  const Shape shape = {int64_t{1} << 39, 1, 0};
  const FoldedValue nothing(false, {shape, {}});
  EXPECT_EQ(One("Gather", {nothing, Integers({0})}, {{"axis", {1}}}).shape, shape);
  EXPECT_EQ(One("Concat", {nothing, nothing}, {{"axis", {2}}}).shape, shape);
  EXPECT_FALSE(Fold("Gather", {nothing, Integers({1})}, {{"axis", {1}}}).ok());
  EXPECT_FALSE(Fold("ConstantOfShape", {Integers({9e18, 9e18, 0})}).ok());
}

TEST_F(FoldingTest, TooManyDimensionsAreRefused) {
  EXPECT_FALSE(Fold("ConstantOfShape", {Integers(std::vector<double>(65, 1))}).ok());
  EXPECT_FALSE(Fold("Expand", {kMatrix, Integers(std::vector<double>(65, 1))}).ok());
  EXPECT_FALSE(Fold("Unsqueeze", {kMatrix, Integers(std::vector<double>(1 << 20, 0))}).ok());
  EXPECT_FALSE(Fold("Squeeze", {Floats({1, 1}, {7}), Integers({0, 0})}).ok());
  EXPECT_EQ(One("Unsqueeze", {kMatrix, Integers({3, 0})}).shape, (Shape{1, 2, 3, 1}));
  EXPECT_EQ(One("Squeeze", {Floats({1, 2, 1}, {7, 8}), Integers({-1})}).shape, (Shape{1, 2}));
}

TEST_F(FoldingTest, TheConstantsOfAFileShareABudget) {
  ASSERT_TRUE(budget_.Work(FoldBudget::kOperationsMax - 20).ok());
  EXPECT_TRUE(Fold("Identity", {kMatrix}).ok());
  const absl::Status refused = Fold("MatMul", {kMatrix, Floats({3, 1}, {1, 2, 3})}).status();
  EXPECT_THAT(std::string(refused.message()),
              testing::HasSubstr("makes the file's constants take more than the limit of"));
  EXPECT_FALSE(Fold("Identity", {kMatrix}).ok()) << "nothing more is computed";
}

}  // namespace
}  // namespace muster::folding_test
