// Checks that models exported from PyTorch give the same training results as in PyTorch.
// tools/make_onnx_goldens.py made the files and describes their contents.
#include <string>

#include "gtest/gtest.h"
#include "lib/engine/replay/onnx_replay.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::onnx_golden_test {
namespace {

class OnnxGoldenTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Models, OnnxGoldenTest,
                         testing::Values("mlp", "cnn", "resnet18", "transformer", "recurrent"));

TEST_P(OnnxGoldenTest, TwentyStepsOfSgdHaveTheLossesOfPyTorch) {
  const std::string golden = std::string("tests/goldens/onnx/") + GetParam();
  v1::OnnxModel model;
  model.set_path(golden + ".onnx");

  const auto replay = ReplayOnnx(model, golden + ".safetensors");
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_LT(replay->loss_difference, 1e-4);
  ASSERT_TRUE(replay->logits_difference);
  EXPECT_LT(*replay->logits_difference, 1e-4);
}

}  // namespace
}  // namespace muster::onnx_golden_test
