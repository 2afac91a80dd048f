// Time of a forward and backward pass on one thread.
#include <benchmark/benchmark.h>

#include <string>

#include "lib/engine/device.h"
#include "lib/engine/executor.h"
#include "lib/engine/model_memory.h"
#include "lib/graph/autodiff.h"
#include "lib/graph/zoo.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

void Step(benchmark::State& state, const std::string& model) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(model);
  const v1::Graph graph = Differentiate(BuildModel(spec).value()).value();
  const auto device = Device::Create("cpu", /*threads=*/1).value();
  const ModelMemory memory(graph, *device, /*seed=*/1);
  const auto executor = Executor::Create(graph, {.batch = state.range(0),
                                                 .device = device.get(),
                                                 .parameters = memory.parameters(),
                                                 .gradients = memory.gradients()})
                            .value();
  FillInputs(graph, /*ids_max=*/10, /*seed=*/2, *executor);
  for (auto _ : state) {
    if (!executor->Run(1.0f, nullptr).ok()) state.SkipWithError("the run failed");
  }
  state.counters["samples/s"] =
      benchmark::Counter(state.range(0), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["arena_MiB"] = executor->arena_bytes() / 1048576.0;
}

BENCHMARK_CAPTURE(Step, gpt, "gpt")->Arg(8)->Arg(16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Step, lenet, "lenet")->Arg(32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Step, mlp, "mlp")->Arg(64)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster

BENCHMARK_MAIN();
