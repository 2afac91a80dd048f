#include "services/coordinator/checkpoints/initial_values.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"

namespace muster::initial_values_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Every slot has chunks of its own in local_sgd.
TEST(InitialValuesTest, WritesTheModelsValuesAndZeroSlotsInEveryMode) {
  Model model;
  v1::Parameter& parameter = *model.graph.add_parameters();
  parameter.set_name("w");
  parameter.add_shape(5);
  model.initial_values = {{1, 2, 3, 4, 5}};
  for (const v1::SyncMode mode : {v1::BSP, v1::LOCAL_SGD}) {
    v1::JobSpec spec;
    spec.set_name("onnx");
    spec.set_chunk_bytes(8);
    spec.mutable_sync()->set_mode(mode);
    spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_learning_rate(1);

    const auto path = WriteInitialValues(::testing::TempDir(), spec, model);

    ASSERT_TRUE(path.ok()) << path.status();
    const auto reader = CheckpointReader::Open(*path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<float> read(5, -1);
    EXPECT_TRUE((*reader)->Read("w", "", 0, absl::MakeSpan(read)).ok());
    EXPECT_THAT(read, ElementsAre(1, 2, 3, 4, 5));
    for (const char* slot : {"m", "v"}) {
      std::fill(read.begin(), read.end(), -1.0f);
      EXPECT_TRUE((*reader)->Read("w", slot, 0, absl::MakeSpan(read)).ok());
      EXPECT_THAT(read, Each(0)) << slot;
    }
    RemoveInitialValues(::testing::TempDir(), *path);
  }
}

}  // namespace
}  // namespace muster::initial_values_test
