// Ranks that use slices of whole parameters compute what ranks with parts of their own compute.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "kernels/conversion.h"
#include "lib/collective/communicator.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/device.h"
#include "lib/engine/element_type.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::parameter_slices_test {
namespace {

constexpr uint64_t kSeed = 11;
constexpr int64_t kBatch = 3;

struct Case {
  std::string name;
  v1::Precision precision = v1::FP32;
  int micro_batches = 1;
  bool narrow = false;  // whether the memory of parameters has 16-bit values
  float loss_scale = 1;
};

class ParameterSlicesTest : public testing::TestWithParam<Case> {
 protected:
  using Gradients = std::vector<std::vector<float>>;

  ParameterSlicesTest() {
    v1::ModelSpec spec;
    CHECK(google::protobuf::TextFormat::ParseFromString(
        R"(zoo { name: 'gpt' args {
             fields { key: 'layers' value { number_value: 2 } }
             fields { key: 'heads' value { number_value: 6 } }
             fields { key: 'channels' value { number_value: 48 } }
             fields { key: 'context' value { number_value: 4 } }
             fields { key: 'vocabulary' value { number_value: 57 } } } })",
        &spec));
    forward_ = BuildModel(spec).value();
    whole_ = TrainingGraph(forward_, {.precision = GetParam().precision}).value();
    device_ = CreateDevice("cpu", /*threads=*/1).value();
  }

  // Returns the gradients of whole parameters that `degree` ranks compute, on the memory of whole
  // parameters or each on parts of its own.
  Gradients Run(int degree, bool on_whole_memory) {
    ModelMemory memory(whole_, *device_, kSeed);
    SharedMemoryGroup group(degree);
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < degree; ++rank) {
        ranks.emplace_back([&, rank] {
          const std::unique_ptr<Communicator> communicator = group.Join(rank);
          const TensorParallel part{.degree = degree, .rank = rank};
          on_whole_memory ? RunOnWhole(part, *communicator, memory)
                          : RunOnPart(part, *communicator, memory);
        });
      }
    }
    Gradients gradients;
    for (int p = 0; p < whole_.parameters_size(); ++p) {
      gradients.emplace_back(memory.gradient(p).begin(), memory.gradient(p).end());
    }
    return gradients;
  }

 private:
  LoweringOptions OptionsOf(const TensorParallel& part) const {
    return {.precision = GetParam().precision, .tensor_parallel = part};
  }

  void RunOnWhole(const TensorParallel& part, Communicator& communicator, ModelMemory& memory) {
    const v1::Graph graph = TrainingGraph(forward_, OptionsOf(part)).value();
    Executor::Options options;
    options.slices = ParameterSlices(forward_, OptionsOf(part)).value();
    std::vector<float*> gradients(memory.gradients().begin(), memory.gradients().end());
    for (int p = 0; p < graph.parameters_size(); ++p) {
      const bool is_whole = options.slices[p].elements() == std::ssize(memory.parameter(p));
      if (is_whole && part.rank > 0) gradients[p] = nullptr;
    }
    if (GetParam().narrow) {
      for (const v1::Parameter& parameter : graph.parameters()) {
        options.narrow_parameters.push_back(parameter.dtype() == v1::DTYPE_BF16);
      }
      if (part.rank == 0) Narrow(options.narrow_parameters, graph, memory);
      float ready = 0;  // the others wait until rank 0 has converted the values
      ASSERT_TRUE(communicator.AllReduce(absl::MakeSpan(&ready, 1), nullptr).ok());
    }
    options.parameters = memory.parameters();
    options.gradients = gradients;
    Compute(graph, std::move(options), communicator);
  }

  void RunOnPart(const TensorParallel& part, Communicator& communicator, ModelMemory& memory) {
    const v1::Graph graph = TrainingGraph(forward_, OptionsOf(part)).value();
    const auto slices = ParameterSlices(forward_, OptionsOf(part)).value();
    const auto device = CreateDevice("cpu", /*threads=*/1).value();
    ModelMemory own(graph, *device, kSeed);
    const auto each = [&](int p, auto copy) {
      for (int64_t run = 0; run < slices[p].runs; ++run) {
        for (int64_t i = 0; i < slices[p].run_elements; ++i) {
          copy(slices[p].offset + run * slices[p].stride + i, run * slices[p].run_elements + i);
        }
      }
    };
    for (int p = 0; p < graph.parameters_size(); ++p) {
      each(p, [&](int64_t in_whole, int64_t in_part) {
        own.parameter(p)[in_part] = memory.parameter(p)[in_whole];
      });
    }
    Compute(graph, {.parameters = own.parameters(), .gradients = own.gradients()}, communicator);
    for (int p = 0; p < graph.parameters_size(); ++p) {
      const bool is_whole = slices[p].elements() == std::ssize(memory.parameter(p));
      if (is_whole && part.rank > 0) continue;
      each(p, [&](int64_t in_whole, int64_t in_part) {
        memory.gradient(p)[in_whole] = own.gradient(p)[in_part];
      });
    }
  }

  void Compute(const v1::Graph& graph, Executor::Options options, Communicator& communicator) {
    const auto device = CreateDevice("cpu", /*threads=*/1).value();
    const int runs = GetParam().micro_batches;
    options.batch = kBatch;
    options.device = device.get();
    options.micro_batches = runs > 1;
    const auto executor = CreateExecutor(graph, options);
    ASSERT_TRUE(executor.ok()) << executor.status();
    FillInputs(graph, /*ids_max=*/57, kSeed, **executor);
    for (int run = 0; run < runs; ++run) {
      const absl::Status status = (*executor)->Run({.loss_scale = GetParam().loss_scale,
                                                    .batch = runs * kBatch,
                                                    .is_first_micro_batch = run == 0,
                                                    .is_last_micro_batch = run == runs - 1,
                                                    .tensor_parallel = &communicator},
                                                   /*flow=*/nullptr);
      EXPECT_TRUE(status.ok()) << status;
    }
  }

  static void Narrow(const std::vector<bool>& narrow, const v1::Graph& graph, ModelMemory& memory) {
    for (int p = 0; p < graph.parameters_size(); ++p) {
      if (!narrow[p]) continue;
      const std::vector<float> wide(memory.parameter(p).begin(), memory.parameter(p).end());
      kernels::Convert(memory.parameter(p).data(), ElementTypeOf(graph.parameters(p).dtype()),
                       wide.data(), kernels::ElementType::kF32, std::ssize(wide));
    }
  }

  v1::Graph forward_;
  v1::Graph whole_;
  std::unique_ptr<Device> device_;
};

TEST_P(ParameterSlicesTest, SlicesOfWholeMemoryGiveTheBitsOfParts) {
  for (const int degree : {2, 4}) {
    const Gradients parts = Run(degree, /*on_whole_memory=*/false);
    EXPECT_EQ(Run(degree, /*on_whole_memory=*/true), parts) << degree << " ranks, seed " << kSeed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Precisions, ParameterSlicesTest,
    testing::Values(Case{"F32"}, Case{.name = "MicroBatches", .micro_batches = 2},
                    Case{.name = "Bf16", .precision = v1::BF16},
                    Case{.name = "NarrowBf16", .precision = v1::BF16, .narrow = true},
                    Case{.name = "ScaledF16", .precision = v1::FP16, .loss_scale = 8}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace muster::parameter_slices_test
