// Measures the time of a training step, forward and backward, by batch and threads. With
// MUSTER_PROFILE=1 in the environment it also prints the time of each op.
#include <benchmark/benchmark.h>
#include <google/protobuf/text_format.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "glog/logging.h"
#include "lib/engine/backends/backends.h"
#include "lib/engine/model_memory.h"
#include "lib/engine/profile.h"
#include "lib/graph/lowering/lowering.h"
#include "lib/graph/zoo/zoo.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

v1::Graph Training(const std::string& zoo_model) {
  v1::ModelSpec spec;
  CHECK(google::protobuf::TextFormat::ParseFromString(zoo_model, spec.mutable_zoo()));
  return TrainingGraph(BuildModel(spec).value(), {}).value();
}

// `zoo_model` is a ZooModel in text form.
void Step(benchmark::State& state, const std::string& zoo_model) {
  const v1::Graph graph = Training(zoo_model);
  const auto device = CreateDevice("cpu", static_cast<int>(state.range(1))).value();
  const ModelMemory memory(graph, *device, /*seed=*/1);
  Profile profile;
  const bool is_profiled = std::getenv("MUSTER_PROFILE") != nullptr;
  const auto start = std::chrono::steady_clock::now();
  const auto executor = CreateExecutor(graph, {.batch = state.range(0),
                                               .device = device.get(),
                                               .parameters = memory.parameters(),
                                               .gradients = memory.gradients(),
                                               .profile = is_profiled ? &profile : nullptr})
                            .value();
  const std::chrono::duration<double> create_time = std::chrono::steady_clock::now() - start;
  FillInputs(graph, /*ids_max=*/10, /*seed=*/2, *executor);
  for (auto _ : state) {
    if (!executor->Run({}, nullptr).ok()) state.SkipWithError("the run failed");
  }
  state.counters["samples/s"] =
      benchmark::Counter(state.range(0), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["create_s"] = create_time.count();
  state.counters["arena_MiB"] = executor->arena_bytes() / 1048576.0;
  if (is_profiled) std::cout << profile.Report(/*nodes=*/30);
}

BENCHMARK_CAPTURE(Step, gpt2,
                  "name: 'gpt2' args { fields { key: 'context' value { number_value: 256 } } }")
    ->Args({1, 1})
    ->Args({1, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(Step, resnet50, "name: 'resnet50'")
    ->Args({8, 1})
    ->Args({8, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(Step, lstm_lm, "name: 'lstm_lm'")
    ->Args({20, 1})
    ->Args({20, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(
    Step, mlp, "name: 'mlp' args { fields { key: 'hidden' value { string_value: '1024,1024' } } }")
    ->Args({128, 1})
    ->Args({128, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(Step, gpt, "name: 'gpt'")
    ->Args({16, 1})
    ->Args({16, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(Step, lenet, "name: 'lenet'")
    ->Args({32, 1})
    ->Args({32, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace muster

BENCHMARK_MAIN();
