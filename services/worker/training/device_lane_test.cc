#include "services/worker/training/device_lane.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/source/open_dataset.h"
#include "lib/graph/gradient_order.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/plan/parameter_table.h"
#include "services/worker/testing/tiny_jobs.h"

namespace muster::device_lane_test {
namespace {

// An exchange that has all values. It fails after `asks` calls of failed().
class FailingExchange : public GradientExchange {
 public:
  explicit FailingExchange(int asks) : asks_left_(asks) {}

  absl::Status Connect(int64_t, std::vector<std::string>) override { return absl::OkStatus(); }
  bool HasParameter(int, int64_t) const override { return true; }
  absl::Status AwaitParameter(int, int64_t) override { return failure_; }
  absl::Status AwaitVersion(int64_t) override { return failure_; }
  absl::StatusOr<float> AwaitLossScale(int64_t) override { return 1.0f; }
  absl::Status AwaitAnswers() override { return failure_; }
  absl::Status Push(ChunkId, int64_t) override { return failure_; }
  int64_t version() const override { return 0; }
  double GradientNorm(int64_t) const override { return 0; }
  double GradientSquares(ChunkId, int64_t) const override { return 0; }
  void Interrupt() override {}
  void Fail(absl::Status) override {}
  bool failed() const override {
    if (--asks_left_ < 0) failure_ = absl::CancelledError("halted");
    return !failure_.ok();
  }
  int64_t step() const override { return 0; }
  std::string culprit() const override { return ""; }

 private:
  mutable int asks_left_;
  mutable absl::Status failure_;
};

// Runs a step of 32 micro-batches. The exchange fails before micro-batch `fails_at`.
absl::Status StepWhoseExchangeFails(int fails_at) {
  FakePs::Options job = LinearJob(/*workers=*/1);
  job.spec.mutable_training()->set_micro_batch_size(1);
  const int64_t batch = job.spec.data().batch_size();
  const auto dataset = OpenDataset(job.spec.data(), job.graph).value();
  auto graphs = std::make_shared<LaneGraphs>();
  graphs->training = TrainingGraph(job.graph, {}).value();
  graphs->inference = InferenceGraph(job.graph, {}).value();
  auto lane = DeviceLane::Create({.device = "cpu",
                                  .graphs = graphs,
                                  .training = job.spec.training(),
                                  .batch_size = batch,
                                  .runs = MicroBatchesOf({0, batch}, /*limit=*/1, 0, 1),
                                  .dataset = dataset.get()})
                  .value();
  std::vector<int64_t> elements;
  for (const v1::Parameter& parameter : job.graph.parameters()) {
    elements.push_back(ElementCount(parameter));
  }
  const GradientLayout layout = LayOutGradients(elements, GradientOrder(graphs->training), 1);
  const auto parameters = TensorSlab::Create(lane->device(), job.graph, layout).value();
  EXPECT_TRUE(lane->Allocate(job.graph, layout).ok());
  EXPECT_TRUE(lane->Build(parameters->pointers(), std::vector<bool>(elements.size())).ok());
  FailingExchange exchange(fails_at - 1);
  GradientReduction reduction({.layout = layout,
                               .memory = {lane->gradients().base()},
                               .reduced = [](int, int64_t) { return absl::OkStatus(); }});
  lane->Connect(&exchange, &reduction);
  const auto input =
      InputPipeline::Create({.dataset = dataset.get(),
                             .graph = &job.graph,
                             .device = &lane->device(),
                             .order = SampleOrder::Full(0, dataset->samples(), batch),
                             .samples = batch})
          .value();
  return lane->Step(input->Next().value(), *input).status();
}

// All values arrive with the first micro-batch and gradients leave with the last one. Without the
// check in between, a halted lane would compute the whole step.
TEST(DeviceLaneTest, StopsBetweenMicroBatchesAfterAHalt) {
  for (const int micro_batch : {1, 17, 31}) {
    EXPECT_TRUE(absl::IsCancelled(StepWhoseExchangeFails(micro_batch))) << micro_batch;
  }
  EXPECT_TRUE(StepWhoseExchangeFails(32).ok()) << "there are 32";
}

}  // namespace
}  // namespace muster::device_lane_test
