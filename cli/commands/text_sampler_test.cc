#include "cli/commands/text_sampler.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/graph/initializer.h"
#include "lib/graph/zoo/zoo.h"
#include "lib/plan/parameter_table.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster::cli::text_sampler_test {
namespace {

// Returns a checkpoint of an untrained model.
std::unique_ptr<const CheckpointReader> Untrained(const std::string& name,
                                                  const v1::ModelSpec& model) {
  v1::JobPlan plan;
  plan.set_job(name);
  plan.mutable_spec()->set_name(name);
  *plan.mutable_spec()->mutable_model() = model;
  plan.mutable_spec()->mutable_data()->mutable_text()->set_path("unused");
  plan.mutable_spec()->mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  *plan.mutable_graph() = *BuildModel(model);
  plan.add_shards();
  for (const v1::PlanChunk& chunk : CutIntoChunks(plan.graph(), 1 << 20))
    *plan.add_chunks() = chunk;

  const std::string directory = absl::StrCat(::testing::TempDir(), "/", name);
  auto writer = CheckpointWriter::Create(
      plan, {.directory = directory, .id = "1", .step = 1, .total_steps = 1});
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (int c = 0; c < plan.chunks_size(); ++c) {
    const v1::PlanChunk& chunk = plan.chunks(c);
    std::vector<float> values(chunk.elements());
    FillInitialValues(plan.graph().parameters(chunk.parameter()).initializer(), /*seed=*/1,
                      chunk.parameter(), chunk.offset(), absl::MakeSpan(values));
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    EXPECT_EQ((*writer)->WriteSlice(c, 0, 0, {bytes, values.size() * sizeof(float)}),
              absl::OkStatus());
  }
  EXPECT_TRUE((*writer)->Commit().ok());
  auto reader = CheckpointReader::Open(CheckpointPath(directory, 1));
  EXPECT_TRUE(reader.ok()) << reader.status();
  return *std::move(reader);
}

v1::ModelSpec Gpt() {
  v1::ModelSpec model;
  model.mutable_zoo()->set_name("gpt");
  auto& args = *model.mutable_zoo()->mutable_args()->mutable_fields();
  args["layers"].set_number_value(1);
  args["heads"].set_number_value(2);
  args["channels"].set_number_value(16);
  args["context"].set_number_value(8);
  return model;
}

TEST(TextSamplerTest, TheSameSeedGivesTheSameText) {
  auto checkpoint = Untrained("writer", Gpt());
  ASSERT_TRUE(HasText(*checkpoint));

  const auto once = SampleText(*checkpoint, {.characters = 40, .seed = 3});
  const auto again = SampleText(*checkpoint, {.characters = 40, .seed = 3});
  const auto other = SampleText(*checkpoint, {.characters = 40, .seed = 4});

  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(once->size(), 40);  // longer than the context of 8
  EXPECT_EQ(*once, *again);
  EXPECT_NE(*once, *other);
}

TEST(TextSamplerTest, OtherModelsWriteNoText) {
  v1::ModelSpec model;
  model.mutable_zoo()->set_name("linear");
  auto checkpoint = Untrained("line", model);

  EXPECT_EQ(SampleText(*checkpoint, {}).status(),
            absl::InvalidArgumentError(
                "model 'linear' reads no tokens; text needs an input 'input' of type i32[batch, "
                "tokens]"));
}

TEST(TextSamplerTest, AnEmptyPromptIsAnErrorOfTheCaller) {
  auto checkpoint = Untrained("silent", Gpt());

  EXPECT_EQ(SampleText(*checkpoint, {.prompt = ""}).status(),
            absl::InvalidArgumentError("the prompt is empty; give at least one character"));
}

}  // namespace
}  // namespace muster::cli::text_sampler_test
