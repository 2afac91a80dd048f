// How fast a chunk is summed and updated. Bytes are those that the update has to move, so the
// figure is comparable with the machine's memory bandwidth (Copy).  bazel run
// //services/ps:apply_benchmark
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/optimizer/optimizer.h"

namespace {

using muster::kernels::OptimizerBuffers;
using muster::kernels::OptimizerRule;

// Enough chunks that none is in a cache when its turn comes.
constexpr int64_t kWorkingSetFloats = int64_t{64} << 20;

void Update(benchmark::State& state, OptimizerRule rule) {
  const int64_t elements = state.range(0) / sizeof(float);
  const int ranks = static_cast<int>(state.range(1));
  const int slots = muster::kernels::OptimizerSlots(rule);
  const int64_t arrays = 2 * (1 + slots) + ranks;
  const int64_t chunks = std::max<int64_t>(1, kWorkingSetFloats / (arrays * elements));
  std::vector<float> memory(chunks * arrays * elements, 0.1f);
  std::vector<const float*> gradients(ranks);
  int64_t chunk = 0;
  for (auto _ : state) {
    float* base = &memory[chunk++ % chunks * arrays * elements];
    auto take = [&] {
      float* array = base;
      base += elements;
      return array;
    };
    for (const float*& gradient : gradients) gradient = take();
    OptimizerBuffers buffers{
        .gradients = gradients.data(), .ranks = ranks, .values_in = take(), .values_out = take()};
    for (int slot = 0; slot < slots; ++slot) {
      buffers.slots_in[slot] = take();
      buffers.slots_out[slot] = take();
    }
    benchmark::DoNotOptimize(
        muster::kernels::ApplyOptimizer({.rule = rule}, 0.01, 3, buffers, elements));
  }
  state.SetBytesProcessed(state.iterations() * arrays * elements * sizeof(float));
}

void Copy(benchmark::State& state) {
  std::vector<float> from(kWorkingSetFloats / 2, 0.1f), to(kWorkingSetFloats / 2);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kWorkingSetFloats * sizeof(float));
}

BENCHMARK(Copy);
BENCHMARK_CAPTURE(Update, sgd, OptimizerRule::kSgd)->ArgsProduct({{4 << 10, 4 << 20}, {2}});
BENCHMARK_CAPTURE(Update, adamw, OptimizerRule::kAdamw)
    ->ArgsProduct({{4 << 10, 4 << 20}, {1, 2, 8}});

}  // namespace

BENCHMARK_MAIN();
