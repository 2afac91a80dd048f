// Ranks that run a split graph on CPU devices, or all on one GPU, give what the reference gives for
// them, and the gradients of the whole graph. The cases of the GPU skip without one.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/conversion.h"
#include "lib/collective/communicator.h"
#include "lib/collective/nccl_communicator.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/collective/two_processes.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/cuda/one_gpu_communicator.h"
#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/engine/reference/reference.h"
#include "lib/engine/verification/instance.h"
#include "lib/engine/verification/models.h"
#include "lib/engine/verification/sketch.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/shape_inference.h"
#include "lib/graph/tensor_parallel/placement.h"
#include "lib/graph/tensor_parallel/split.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::verification::ranks_test {
namespace {

using reference::Tensors;

constexpr int64_t kBatch = 4;
constexpr uint64_t kSeed = 6;
constexpr RunArguments kArguments = {.seed = 5, .step = 3};

// An embedding, a pair of linear layers with dropout between them, and a loss of `words` classes.
// Every op that has a form for a part is divided. Targets of -1 do not count.
v1::Graph Model(int64_t words) {
  Sketch s;
  s.Ids("input", {3});
  s.Ids("target", {3});
  std::string y = s.Add("embedding", "Embedding", {"input", s.Parameter("table", {words, 6})});
  y = s.Add("up", "Linear", {y, s.Parameter("up.weight", {13, 6}), s.Parameter("up.bias", {13})});
  y = s.Add("dropped", "Dropout", {y}, {{"rate", 0.4}, {"salt", 2}});
  y = s.Add("down", "Linear", {y, s.Parameter("down.weight", {6, 13})});
  y = s.Add("logits", "Linear", {y, s.Parameter("head.weight", {words, 6})});
  s.Loss("SoftmaxCrossEntropy", y, "target", {{"label_smoothing", 0.1}, {"ignore_index", -1}});
  return s.graph;
}

Tensors Given(const v1::Graph& graph, int64_t words) {
  return RandomTensors(graph, kBatch, words, kSeed, /*ignoring=*/true);
}

// A GPU pads the parts of the second model's head in 16 bits.
constexpr int64_t kWords[] = {11, 1203};

std::vector<double> Part(const std::vector<double>& whole, const ParameterSlice& slice) {
  std::vector<double> own;
  for (int64_t i = 0; i < slice.elements(); ++i) {
    own.push_back(
        whole[slice.offset + i / slice.run_elements * slice.stride + i % slice.run_elements]);
  }
  return own;
}

Tensors PartOf(const v1::Graph& graph, Tensors given, const std::vector<ParameterSlice>& slices) {
  for (int p = 0; p < graph.parameters_size(); ++p) {
    std::vector<double>& values = given.at(graph.parameters(p).name()).values;
    values = Part(values, slices[p]);
  }
  return given;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

double Distance(std::vector<double> a, const std::vector<double>& b) {
  std::ranges::transform(a, b, a.begin(), std::minus<double>());
  return Norm(a);
}

// Calls run(rank, its arguments) on a thread for each rank.
template <typename F>
void ForEveryRank(const std::string& device, int degree, F run) {
  SharedMemoryGroup group(degree, absl::Seconds(60));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < degree; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Communicator> communicator = group.Join(rank);
      if (device != "cpu") {
        communicator = std::make_unique<OneGpuCommunicator>(std::move(communicator));
      }
      RunArguments arguments = kArguments;
      arguments.tensor_parallel = communicator.get();
      run(rank, arguments);
    });
  }
}

using Instances = std::vector<std::unique_ptr<Instance>>;

// Runs one graph per rank, each on a device of its own. All are made before the first one runs.
Instances RunRanks(const std::string& device, const std::vector<v1::Graph>& graphs,
                   const std::vector<Tensors>& given) {
  Instances instances;
  for (size_t rank = 0; rank < graphs.size(); ++rank) {
    instances.push_back(
        Instance::Create(graphs[rank], {.batch = kBatch, .device = device}).value());
    instances.back()->Set(given[rank]);
  }
  ForEveryRank(device, static_cast<int>(graphs.size()),
               [&](int rank, const RunArguments& arguments) {
                 const absl::Status run = instances[rank]->Run(arguments);
                 EXPECT_TRUE(run.ok()) << run;
               });
  return instances;
}

struct Split {
  std::vector<v1::Graph> graphs;
  std::vector<Tensors> given;
  std::vector<std::vector<ParameterSlice>> slices;
};

Split Training(const v1::Graph& graph, const Tensors& given, int degree, v1::Precision precision) {
  Split split;
  for (int rank = 0; rank < degree; ++rank) {
    const LoweringOptions options{.precision = precision,
                                  .tensor_parallel = {.degree = degree, .rank = rank}};
    split.graphs.push_back(TrainingGraph(graph, options).value());
    split.slices.push_back(ParameterSlices(graph, options).value());
    split.given.push_back(PartOf(graph, given, split.slices.back()));
  }
  return split;
}

void SkipWithout(const std::string& device) {
  const absl::Status available = CreateDevice(device, /*threads=*/1).status();
  if (absl::IsUnavailable(available)) GTEST_SKIP() << available.message();
  ASSERT_TRUE(available.ok()) << available;
}

// The tolerance of each precision; that of f32 is given.
std::vector<std::pair<v1::Precision, double>> Tolerances(double of_f32) {
  return {{v1::FP32, of_f32}, {v1::BF16, 2.5e-2}, {v1::FP16, 6e-3}};
}

std::unique_ptr<Instance> RunWhole(const v1::Graph& graph, const Tensors& given,
                                   v1::Precision precision) {
  auto whole = Instance::Create(TrainingGraph(graph, {.precision = precision}).value(),
                                {.batch = kBatch, .device = "cpu"})
                   .value();
  whole->Set(given);
  EXPECT_TRUE(whole->Run(kArguments).ok());
  return whole;
}

double LargestGradient(const Instance& whole) {
  double largest = 0;
  for (const v1::Parameter& parameter : whole.graph().parameters()) {
    largest = std::max(largest, Norm(whole.Gradient(parameter.name())));
  }
  return largest;
}

// Expects that the rank has the loss of the whole graph, and its parts of the gradients, to the
// bits of `again`. The tolerance is a part of each gradient's norm, or of `norm_min` if that is
// larger.
void ExpectPartOf(const Instance& whole, const std::vector<ParameterSlice>& slices,
                  const Instance& rank, const Instance& again, double tolerance,
                  double norm_min = 0) {
  EXPECT_NEAR(rank.loss(), whole.loss(), tolerance * whole.loss());
  for (size_t p = 0; p < slices.size(); ++p) {
    const std::string& name = whole.graph().parameters(static_cast<int>(p)).name();
    const std::vector<double> own = rank.Gradient(name), wanted = whole.Gradient(name);
    EXPECT_LE(Distance(own, Part(wanted, slices[p])), tolerance * std::max(Norm(wanted), norm_min))
        << name;
    EXPECT_EQ(again.Gradient(name), own) << name << " does not repeat";
  }
}

class RanksTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { SkipWithout(device()); }
  const std::string& device() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Devices, RanksTest, testing::Values("cpu", "cuda:0"),
                         [](const auto& info) {
                           return info.param.substr(0, info.param.find(':'));
                         });

TEST_P(RanksTest, TheLossIsThatOfTheReferencesRanks) {
  for (const int64_t words : kWords) {
    const v1::Graph graph = Model(words);
    const Tensors given = Given(graph, words);
    const TensorTypes types = InferTypes(graph, kBatch).value();
    for (const int degree : {2, 3}) {
      std::vector<v1::Graph> graphs;
      std::vector<Tensors> parts;
      for (int rank = 0; rank < degree; ++rank) {
        SplitGraph split = SplitTensors(graph, types, {.degree = degree, .rank = rank}).value();
        parts.push_back(PartOf(graph, given, split.slices));
        for (const v1::Parameter& parameter : split.graph.parameters()) {
          parts.back().at(parameter.name()).shape = {parameter.shape().begin(),
                                                     parameter.shape().end()};
        }
        graphs.push_back(std::move(split.graph));
      }
      const std::vector<Tensors> wanted = reference::EvaluateRanks(graphs, parts, kArguments);
      const Instances ranks = RunRanks(device(), graphs, parts);
      for (int rank = 0; rank < degree; ++rank) {
        const double loss = wanted[rank].at(graph.loss()).values[0];
        EXPECT_NEAR(ranks[rank]->loss(), loss, 5e-6 * loss) << words << ", rank " << rank;
      }
    }
  }
}

TEST_P(RanksTest, GradientsAreThePartsOfTheWholeGradients) {
  for (const int64_t words : kWords) {
    const v1::Graph graph = Model(words);
    const Tensors given = Given(graph, words);
    for (const auto& [precision, tolerance] : Tolerances(device() == "cpu" ? 1e-5 : 2e-4)) {
      const auto whole = RunWhole(graph, given, precision);
      for (const int degree : {2, 3}) {
        const Split split = Training(graph, given, degree, precision);
        const Instances ranks = RunRanks(device(), split.graphs, split.given);
        const Instances again = RunRanks(device(), split.graphs, split.given);
        for (int rank = 0; rank < degree; ++rank) {
          SCOPED_TRACE(absl::StrCat(words, " words, ", v1::Precision_Name(precision), ", rank ",
                                    rank, " of ", degree, ", seed ", kSeed));
          ExpectPartOf(*whole, split.slices[rank], *ranks[rank], *again[rank], tolerance);
        }
      }
    }
  }
}

TEST_P(RanksTest, AnIdThatNoRankHasIsAnErrorOnAll) {
  const v1::Graph graph = Model(kWords[0]);
  for (const char* input : {"input", "target"}) {
    Tensors given = Given(graph, kWords[0]);
    given.at(input).values[5] = static_cast<double>(kWords[0]);
    const Split split = Training(graph, given, 2, v1::FP32);
    Instances instances;
    for (int rank = 0; rank < 2; ++rank) {
      instances.push_back(
          Instance::Create(split.graphs[rank], {.batch = kBatch, .device = device()}).value());
      instances.back()->Set(split.given[rank]);
    }
    // A rank that knows of the error first ends the group.
    std::vector<absl::Status> runs(2);
    ForEveryRank(device(), 2, [&](int rank, const RunArguments& arguments) {
      runs[rank] = instances[rank]->Run(arguments);
    });
    EXPECT_TRUE(std::ranges::any_of(runs, absl::IsInvalidArgument)) << runs[0] << "; " << runs[1];
    for (const absl::Status& run : runs) EXPECT_FALSE(run.ok());
  }
}

TEST_P(RanksTest, ARankThatLeavesEndsTheRunOfTheOther) {
  const v1::Graph graph = Model(kWords[0]);
  const Split split = Training(graph, Given(graph, kWords[0]), 2, v1::FP32);
  const auto instance =
      Instance::Create(split.graphs[0], {.batch = kBatch, .device = device()}).value();
  instance->Set(split.given[0]);
  ForEveryRank(device(), 2, [&](int rank, const RunArguments& arguments) {
    if (rank == 1) {
      arguments.tensor_parallel->Abort(absl::AbortedError("paused"));
      return;
    }
    const absl::Status run = instance->Run(arguments);
    EXPECT_TRUE(absl::IsAborted(run)) << run;
    EXPECT_TRUE(absl::StrContains(run.message(), "paused")) << run;
  });
}

// Whole parameters on the host, from which ranks read their slices.
class WholeMemory {
 public:
  // `narrow`: parameters in bf16 are given in 16 bits.
  WholeMemory(const v1::Graph& whole, const Tensors& given, Device& device, bool narrow)
      : memory_(whole, device, kSeed), narrow_(whole.parameters_size()) {
    for (int p = 0; p < whole.parameters_size(); ++p) {
      const v1::Parameter& parameter = whole.parameters(p);
      const std::vector<double>& given_values = given.at(parameter.name()).values;
      const std::vector<float> values(given_values.begin(), given_values.end());
      narrow_[p] = narrow && parameter.dtype() == v1::DTYPE_BF16;
      kernels::Convert(memory_.parameter(p).data(),
                       narrow_[p] ? kernels::ElementType::kBf16 : kernels::ElementType::kF32,
                       values.data(), kernels::ElementType::kF32, std::ssize(values));
    }
  }

  // Makes the executor of a rank. Rank 0 alone exports the gradients of whole parameters.
  std::unique_ptr<Executor> Make(const Split& split, int rank, Device& device) const {
    std::vector<float*> gradients(memory_.gradients().begin(), memory_.gradients().end());
    for (size_t p = 0; p < gradients.size(); ++p) {
      const bool is_whole = split.slices[rank][p].elements() == std::ssize(memory_.gradient(p));
      if (is_whole && rank > 0) gradients[p] = nullptr;
    }
    return CreateExecutor(split.graphs[rank], {.batch = kBatch,
                                               .device = &device,
                                               .parameters = memory_.parameters(),
                                               .narrow_parameters = narrow_,
                                               .gradients = gradients,
                                               .slices = split.slices[rank]})
        .value();
  }

  std::vector<double> Gradient(int p) const {
    return {memory_.gradient(p).begin(), memory_.gradient(p).end()};
  }

 private:
  const ModelMemory memory_;
  std::vector<bool> narrow_;
};

TEST_P(RanksTest, SlicesOfWholeTensorsGiveWhatTensorsOfTheirOwnGive) {
  constexpr int kDegree = 3;
  for (const int64_t words : kWords) {
    const v1::Graph graph = Model(words);
    const Tensors given = Given(graph, words);
    for (const auto& [precision, narrow] :
         {std::pair(v1::FP32, false), std::pair(v1::BF16, false), std::pair(v1::BF16, true)}) {
      SCOPED_TRACE(absl::StrCat(words, " words, ", v1::Precision_Name(precision),
                                narrow ? ", narrow" : "", ", seed ", kSeed));
      const Split split = Training(graph, given, kDegree, precision);
      const Instances wanted = RunRanks(device(), split.graphs, split.given);

      std::vector<std::unique_ptr<Device>> devices;
      for (int rank = 0; rank < kDegree; ++rank) {
        devices.push_back(CreateDevice(device(), /*threads=*/1).value());
      }
      const WholeMemory memory(TrainingGraph(graph, {.precision = precision}).value(), given,
                               *devices[0], narrow);
      std::vector<std::unique_ptr<Executor>> executors;
      for (int rank = 0; rank < kDegree; ++rank) {
        executors.push_back(memory.Make(split, rank, *devices[rank]));
        for (const v1::GraphInput& input : graph.inputs()) {
          const absl::Span<std::byte> from = wanted[rank]->executor().input(input.name());
          std::ranges::copy(from, executors[rank]->input(input.name()).begin());
        }
      }
      ForEveryRank(device(), kDegree, [&](int rank, const RunArguments& arguments) {
        const absl::Status run = executors[rank]->Run(arguments, nullptr);
        EXPECT_TRUE(run.ok()) << run;
      });
      for (int p = 0; p < graph.parameters_size(); ++p) {
        for (int rank = 0; rank < kDegree; ++rank) {
          const std::string& name = graph.parameters(p).name();
          EXPECT_EQ(Part(memory.Gradient(p), split.slices[rank][p]), wanted[rank]->Gradient(name))
              << name;
        }
      }
    }
  }
}

// NCCL sums beside computations, which ranks that meet on the host cannot.
TEST(RankProcessesTest, TwoProcessesOnOneGpuTrainTheirPartsOfAGpt) {
  SkipWithout("cuda:0");
  if (IsSkipped() || HasFatalFailure()) return;
  RunInTwoProcesses([](NcclGroup& group, int rank) {
    const auto communicator = group.Join(rank);
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    RunArguments arguments = kArguments;
    arguments.tensor_parallel = communicator->get();
    const v1::Graph graph = Transformer({.dropout = 0.2});
    const Tensors given = Given(graph, /*words=*/11);
    for (const auto& [precision, tolerance] : Tolerances(2e-4)) {
      SCOPED_TRACE(absl::StrCat(v1::Precision_Name(precision), ", rank ", rank, ", seed ", kSeed));
      const Split split = Training(graph, given, group.world_size(), precision);
      const auto run = [&] {
        auto instance =
            Instance::Create(split.graphs[rank], {.batch = kBatch, .device = "cuda:0"}).value();
        instance->Set(split.given[rank]);
        const absl::Status status = instance->Run(arguments);
        EXPECT_TRUE(status.ok()) << status;
        return instance;
      };
      const auto own = run(), again = run(), whole = RunWhole(graph, given, precision);
      // Rounding to bf16 changes the small gradients of a gpt by 2 % of their norm, on a CPU too.
      ExpectPartOf(*whole, split.slices[rank], *own, *again, tolerance, LargestGradient(*whole));
    }
  });
}

}  // namespace
}  // namespace muster::verification::ranks_test
