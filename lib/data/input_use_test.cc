#include "lib/data/input_use.h"

#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/data/sample_bytes.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::input_use_test {
namespace {

using Names = std::vector<std::string>;

class InputUseTest : public testing::Test {
 protected:
  void Input(const std::string& name, v1::DType dtype, std::vector<int64_t> shape) {
    v1::GraphInput& input = *graph_.add_inputs();
    input.set_name(name);
    input.set_dtype(dtype);
    input.mutable_shape()->Assign(shape.begin(), shape.end());
  }
  void Parameter(const std::string& name, std::vector<int64_t> shape) {
    v1::Parameter& parameter = *graph_.add_parameters();
    parameter.set_name(name);
    parameter.mutable_shape()->Assign(shape.begin(), shape.end());
  }
  v1::Node& Node(const std::string& op, const Names& inputs, const Names& outputs) {
    v1::Node& node = *graph_.add_nodes();
    node.set_name(outputs[0]);
    node.set_op(op);
    node.mutable_inputs()->Assign(inputs.begin(), inputs.end());
    node.mutable_outputs()->Assign(outputs.begin(), outputs.end());
    return node;
  }

  v1::Graph graph_;
};

TEST_F(InputUseTest, IdsAreBoundedByTablesAndClasses) {
  Input("tokens", v1::DTYPE_I32, {-1, 6});
  Input("target", v1::DTYPE_I32, {-1, 6});
  Parameter("table", {50, 4});
  Parameter("head", {30, 4});
  Node("Embedding", {"tokens", "table"}, {"x"});
  Node("Linear", {"x", "head"}, {"logits"});
  v1::Node& loss = Node("SoftmaxCrossEntropy", {"logits", "target"}, {"loss", "lse"});
  (*loss.mutable_attributes())["ignore_index"].set_i(-100);
  graph_.set_loss("loss");

  const std::vector<InputUse> uses = UsesOfInputs(graph_);

  ASSERT_EQ(uses.size(), 2);
  EXPECT_TRUE(uses[0].Takes(0) && uses[0].Takes(49));
  EXPECT_FALSE(uses[0].Takes(-1) || uses[0].Takes(50) || uses[0].Takes(-100));
  EXPECT_FALSE(uses[0].ignore_index.has_value());
  EXPECT_TRUE(uses[1].Takes(0) && uses[1].Takes(29) && uses[1].Takes(-100));
  EXPECT_FALSE(uses[1].Takes(30) || uses[1].Takes(-1));
  EXPECT_EQ(uses[1].ignore_index, -100);
  EXPECT_EQ(ToText(uses[0]), "0 to 49");
  EXPECT_EQ(ToText(uses[1]), "0 to 29, -100 is ignored");
  EXPECT_EQ(ToText(InputUse()), "");
}

TEST_F(InputUseTest, FollowsAnInputThroughOpsThatOnlyRearrange) {
  Input("tokens", v1::DTYPE_I32, {-1, 6});
  Input("target", v1::DTYPE_F32, {-1, 24});
  Parameter("table", {50, 4});
  v1::Node& flat = Node("Reshape", {"tokens"}, {"flat"});
  flat.mutable_attributes()->operator[]("shape").mutable_integers()->add_values(0);
  flat.mutable_attributes()->operator[]("shape").mutable_integers()->add_values(3);
  flat.mutable_attributes()->operator[]("shape").mutable_integers()->add_values(2);
  Node("Embedding", {"flat", "table"}, {"x"});
  Node("Flatten", {"x"}, {"logits"});
  Node("SigmoidCrossEntropy", {"logits", "target"}, {"loss"});
  graph_.set_loss("loss");

  const std::vector<InputUse> uses = UsesOfInputs(graph_);

  EXPECT_EQ(uses[0].limit, 50);
  EXPECT_EQ(uses[0].lowest, 0);
  EXPECT_TRUE(uses[1].is_probability);
  EXPECT_FALSE(uses[1].is_bounded());
}

TEST_F(InputUseTest, AnInvalidGraphSetsNoBounds) {
  Input("tokens", v1::DTYPE_I32, {-1, 6});
  Node("Nonsense", {"tokens"}, {"x"});
  const std::vector<InputUse> uses = UsesOfInputs(graph_);
  ASSERT_EQ(uses.size(), 1);
  EXPECT_TRUE(uses[0].Takes(std::numeric_limits<int32_t>::min()));
}

TEST(CountTargetsTest, LeavesOutTheIgnoreIndex) {
  std::vector<int32_t> ids = {3, -1, 0, -1, -1, 7};
  EXPECT_EQ(CountTargets({.ignore_index = -1}, BytesOf(ids)), 3);
  EXPECT_EQ(CountTargets({.ignore_index = 9}, BytesOf(ids)), 6);
  EXPECT_EQ(CountTargets({.ignore_index = 9}, {}), 0);
}

}  // namespace
}  // namespace muster::input_use_test
