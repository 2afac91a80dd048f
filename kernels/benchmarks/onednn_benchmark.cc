// Compares our products and convolutions with a bare loop over oneDNN's execute(). In the bare loop
// every operand, weights included, has the layout that oneDNN prefers. Our kernels start and end
// with row-major weights. Both use OMP_NUM_THREADS threads. FLOP/s is that of the fastest
// iteration.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/convolution.h"
#include "kernels/linear.h"

namespace muster::kernels {
namespace {

using Floats = std::vector<float>;

Floats Values(int64_t n) {
  Floats values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i * 7919 % 1000) * 1e-3f - 0.5f;
  return values;
}

// Calls f() once per iteration, and reports FLOP/s. One call does `products` multiplications and as
// many additions.
template <typename F>
void Measure(benchmark::State& state, double products, F f) {
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> best = std::chrono::hours(1);
  for (auto _ : state) {
    const auto start = Clock::now();
    f();
    best = std::min<std::chrono::duration<double>>(best, Clock::now() - start);
  }
  state.counters["FLOP/s"] = 2 * products / best.count();
}

// --- Bare primitives ----------------------------------------------------------------------------

dnnl::memory::desc Any(const dnnl::memory::dims& dims) {
  return {dims, dnnl::memory::data_type::f32, dnnl::memory::format_tag::any};
}

dnnl::engine& Engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Measures a primitive on memory in the layouts that it prefers.
template <typename Descriptor, typename Run>
void RunBare(benchmark::State& state, const Descriptor& descriptor, Run primitive,
             const std::vector<int>& arguments, double products) {
  std::unordered_map<int, dnnl::memory> memory;
  for (int argument : arguments) {
    dnnl::memory m(descriptor.query_md(dnnl::query::exec_arg_md, argument), Engine());
    std::fill_n(static_cast<float*>(m.get_data_handle()), m.get_desc().get_size() / sizeof(float),
                0.01f);
    memory.emplace(argument, m);
  }
  dnnl::stream stream(Engine());
  Measure(state, products, [&] {
    primitive.execute(stream, memory);
    stream.wait();
  });
}

// --- Matrix products of GPT-2 124M on 256 tokens ------------------------------------------------

enum class Pass { kForward, kGradInput, kGradWeight };

void OurLinear(benchmark::State& state, LinearShape shape, Pass pass) {
  const auto [rows, inputs, outputs] = shape;
  Floats x = Values(rows * inputs), w = Values(outputs * inputs), y = Values(rows * outputs);
  Measure(state, double(rows) * inputs * outputs, [&, shape = shape] {
    switch (pass) {
      case Pass::kForward:
        Linear(y.data(), x.data(), w.data(), nullptr, shape);
        break;
      case Pass::kGradInput:
        LinearGradInput(x.data(), y.data(), w.data(), shape);
        break;
      case Pass::kGradWeight:
        LinearGradWeight(w.data(), y.data(), x.data(), shape);
        break;
    }
  });
}

void BareProduct(benchmark::State& state, int64_t rows, int64_t inner, int64_t columns) {
  const dnnl::matmul::primitive_desc descriptor(
      dnnl::matmul::desc(Any({rows, inner}), Any({inner, columns}), Any({rows, columns})),
      Engine());
  RunBare(state, descriptor, dnnl::matmul(descriptor),
          {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, double(rows) * inner * columns);
}

// --- Convolutions of ResNet-50, 8 images --------------------------------------------------------

std::byte* Aligned(Floats& memory) {
  return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
}

void OurConvolution(benchmark::State& state, const Conv2dShape& s, Pass pass) {
  const int64_t image = 2 * s.batch * std::max<int64_t>(s.channels, 16) * s.height * s.width;
  const int64_t result = 2 * s.batch * s.outputs * s.pixels();
  Floats x = Values(image), y = Values(result), w = Values(s.outputs * s.patch());
  auto run = [&](auto& kernel, auto call) {
    Floats workspace(kernel.workspace_bytes() / sizeof(float) + 16);
    Measure(state, double(s.batch) * s.outputs * s.pixels() * s.patch(),
            [&] { call(kernel, Aligned(workspace)); });
  };
  if (pass == Pass::kForward) {
    Conv2d kernel(s, {});
    run(kernel, [&](Conv2d& k, std::byte* workspace) {
      k.Run(y.data(), x.data(), w.data(), nullptr, workspace);
    });
  } else if (pass == Pass::kGradInput) {
    Conv2dGradInput kernel(s);
    run(kernel, [&](Conv2dGradInput& k, std::byte* workspace) {
      k.Run(x.data(), y.data(), w.data(), workspace);
    });
  } else {
    Conv2dGradWeight kernel(s);
    run(kernel, [&](Conv2dGradWeight& k, std::byte* workspace) {
      k.Run(w.data(), y.data(), x.data(), workspace);
    });
  }
}

void BareConvolution(benchmark::State& state, const Conv2dShape& s, Pass pass) {
  using Algorithm = dnnl::algorithm;
  const auto x = Any({s.batch, s.channels, s.height, s.width});
  const auto w = Any({s.outputs, s.channels, s.kernel[0], s.kernel[1]});
  const auto y = Any({s.batch, s.outputs, s.output_height(), s.output_width()});
  const dnnl::memory::dims strides = {s.strides[0], s.strides[1]};
  const dnnl::memory::dims before = {s.padding[0], s.padding[1]};
  const dnnl::memory::dims after = {s.padding[2], s.padding[3]};
  const double products = double(s.batch) * s.outputs * s.pixels() * s.patch();
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, Algorithm::convolution_direct, x, w, y, strides, before,
       after},
      Engine());
  if (pass == Pass::kForward) {
    RunBare(state, forward, dnnl::convolution_forward(forward),
            {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST}, products);
  } else if (pass == Pass::kGradInput) {
    const dnnl::convolution_backward_data::primitive_desc descriptor(
        {Algorithm::convolution_direct, x, w, y, strides, before, after}, Engine(), forward);
    RunBare(state, descriptor, dnnl::convolution_backward_data(descriptor),
            {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST}, products);
  } else {
    const dnnl::convolution_backward_weights::primitive_desc descriptor(
        {Algorithm::convolution_direct, x, w, y, strides, before, after}, Engine(), forward);
    RunBare(state, descriptor, dnnl::convolution_backward_weights(descriptor),
            {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}, products);
  }
}

// --- Registration -------------------------------------------------------------------------------

template <typename F, typename... Arguments>
void Register(const std::string& name, F f, Arguments... arguments) {
  benchmark::RegisterBenchmark(name.c_str(), f, arguments...)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

void RegisterAll() {
  for (const LinearShape& s : {LinearShape{256, 768, 2304}, LinearShape{256, 768, 3072},
                               LinearShape{256, 3072, 768}, LinearShape{256, 768, 50257}}) {
    const std::string size =
        std::to_string(s.rows) + "x" + std::to_string(s.inputs) + "x" + std::to_string(s.outputs);
    Register("linear/" + size + "/ours", OurLinear, s, Pass::kForward);
    Register("linear/" + size + "/bare", BareProduct, s.rows, s.inputs, s.outputs);
    Register("linear_grad_input/" + size + "/ours", OurLinear, s, Pass::kGradInput);
    Register("linear_grad_input/" + size + "/bare", BareProduct, s.rows, s.outputs, s.inputs);
    Register("linear_grad_weight/" + size + "/ours", OurLinear, s, Pass::kGradWeight);
    Register("linear_grad_weight/" + size + "/bare", BareProduct, s.outputs, s.rows, s.inputs);
  }
  for (const Conv2dShape& s : {
           Conv2dShape{8, 3, 224, 224, 64, {7, 7}, {2, 2}, {3, 3, 3, 3}},
           Conv2dShape{8, 64, 56, 56, 64, {3, 3}, {1, 1}, {1, 1, 1, 1}},
           Conv2dShape{8, 64, 56, 56, 256, {1, 1}},
           Conv2dShape{8, 256, 56, 56, 512, {1, 1}, {2, 2}},
           Conv2dShape{8, 128, 28, 28, 128, {3, 3}, {1, 1}, {1, 1, 1, 1}},
           Conv2dShape{8, 512, 28, 28, 128, {1, 1}},
           Conv2dShape{8, 256, 14, 14, 256, {3, 3}, {1, 1}, {1, 1, 1, 1}},
           Conv2dShape{8, 256, 14, 14, 1024, {1, 1}},
           Conv2dShape{8, 512, 7, 7, 512, {3, 3}, {1, 1}, {1, 1, 1, 1}},
           Conv2dShape{8, 2048, 7, 7, 512, {1, 1}},
       }) {
    const std::string size = std::to_string(s.channels) + "x" + std::to_string(s.height) + "x" +
                             std::to_string(s.width) + "_to_" + std::to_string(s.outputs) + "_by_" +
                             std::to_string(s.kernel[0]) + "x" + std::to_string(s.kernel[1]);
    Register("conv/" + size + "/ours", OurConvolution, s, Pass::kForward);
    Register("conv/" + size + "/bare", BareConvolution, s, Pass::kForward);
    if (s.channels > 3) {  // The image itself needs no gradient.
      Register("conv_grad_input/" + size + "/ours", OurConvolution, s, Pass::kGradInput);
      Register("conv_grad_input/" + size + "/bare", BareConvolution, s, Pass::kGradInput);
    }
    Register("conv_grad_weight/" + size + "/ours", OurConvolution, s, Pass::kGradWeight);
    Register("conv_grad_weight/" + size + "/bare", BareConvolution, s, Pass::kGradWeight);
  }
}

}  // namespace
}  // namespace muster::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  muster::kernels::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
}
