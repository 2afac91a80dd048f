// Compares the sum and update of chunks with a STREAM-like loop over as many arrays of the same
// types, with the same kind of stores, on one core. Prints for each rule, gradient type and size
// the bandwidth of both and their ratio.
//   bazel run //kernels/benchmarks:optimizer_benchmark
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/benchmarks/stream_loops.h"
#include "kernels/optimizer/optimizer.h"

namespace muster::kernels {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int kRepetitions = 60;       // the best of these: what the machine can do undisturbed
constexpr int64_t kBytes = 64 * kMiB;  // moved per repetition, or by one update

// Returns the CPU time of this thread alone, because other processes may use the core meanwhile.
double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

StreamLoop* ChosenStream() {
  StreamLoop* const loops[] = {baseline::Stream, avx2::Stream, avx512::Stream};
  return loops[static_cast<int>(DetectSimdLevel())];
}

struct Case {
  const char* name;
  OptimizerRule rule;
  FloatType gradient;
  int ranks = 1;  // of f32 only
  const uint8_t* joins = nullptr;
};

// Memory of one case: the gradients and two versions of values and slots, as a shard has them.
class Arrays {
 public:
  Arrays(const Case& c, int64_t footprint, bool streaming)
      : case_(c),
        streaming_(streaming),
        slots_(OptimizerSlots(c.rule)),
        elements_(footprint / (BytesPerElement() * kAlign) * kAlign),
        memory_(static_cast<std::byte*>(
            std::aligned_alloc(4 * kKiB, (footprint / (4 * kKiB) + 16) * 4 * kKiB))) {
    std::byte* at = memory_.get();
    auto take = [&](int64_t bytes) {
      std::byte* array = at;
      at += bytes;
      return array;
    };
    for (int rank = 0; rank < case_.ranks; ++rank) {
      std::byte* const gradient = take(elements_ * GradientBytes());
      std::fill(gradient, gradient + elements_ * GradientBytes(), std::byte{0x3c});  // 0.0115
      gradients_.push_back({gradient, case_.gradient});
    }
    for (auto& version : floats_) {
      for (int i = 0; i <= slots_; ++i) {
        version[i] = reinterpret_cast<float*>(take(elements_ * sizeof(float)));
        std::fill_n(version[i], elements_, 0.1f);
      }
    }
  }

  // Bytes that one update moves.
  int64_t bytes() const { return elements_ * BytesPerElement(); }

  void Update() {
    OptimizerBuffers buffers{
        .gradients = gradients_.data(),
        .ranks = case_.ranks,
        .joins = case_.joins,
        .values_in = floats_[current_][0],
        .values_out = floats_[1 - current_][0],
        .streaming = streaming_ ? Streaming::kSlotsAndValues : Streaming::kNothing};
    for (int slot = 0; slot < slots_; ++slot) {
      buffers.slots_in[slot] = floats_[current_][1 + slot];
      buffers.slots_out[slot] = floats_[1 - current_][1 + slot];
    }
    if (ApplyOptimizer({.rule = case_.rule, .momentum = 0.9}, 1e-3, 3, buffers, elements_) < 0) {
      std::abort();
    }
    current_ = 1 - current_;
  }

  void Stream(StreamLoop* loop) {
    StreamArrays a;
    for (const Gradient& gradient : gradients_) {
      if (gradient.type == FloatType::kF32) {
        a.reads[a.read_count++] = static_cast<const float*>(gradient.elements);
      } else {
        a.bf16_read = static_cast<const uint16_t*>(gradient.elements);
      }
    }
    for (int i = 0; i <= slots_; ++i) {
      a.reads[a.read_count++] = floats_[current_][i];
      a.writes[a.write_count++] = floats_[1 - current_][i];
    }
    a.streaming_stores = streaming_;
    loop(a, elements_);
    current_ = 1 - current_;
  }

 private:
  static constexpr int64_t kAlign = 64;  // elements

  int64_t GradientBytes() const { return case_.gradient == FloatType::kF32 ? 4 : 2; }
  int64_t BytesPerElement() const {
    return case_.ranks * GradientBytes() + 2 * (1 + OptimizerSlots(case_.rule)) * 4;
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  const Case case_;
  const bool streaming_;
  const int slots_;
  const int64_t elements_;
  const std::unique_ptr<std::byte, Free> memory_;
  std::vector<Gradient> gradients_;
  float* floats_[2][1 + kOptimizerSlotsMax] = {};
  int current_ = 0;
};

template <typename F>
double TimePerCall(int64_t calls, F f) {
  const double begin = CpuSeconds();
  for (int64_t i = 0; i < calls; ++i) f();
  return (CpuSeconds() - begin) / static_cast<double>(calls);
}

void Compare(const Case& c, int64_t footprint, bool streaming) {
  Arrays arrays(c, footprint, streaming);
  const int64_t calls = std::max<int64_t>(1, kBytes / arrays.bytes());
  StreamLoop* const loop = ChosenStream();
  double update = std::numeric_limits<double>::infinity(), stream = update;
  for (int i = 0; i < kRepetitions; ++i) {
    stream = std::min(stream, TimePerCall(calls, [&] { arrays.Stream(loop); }));
    update = std::min(update, TimePerCall(calls, [&] { arrays.Update(); }));
  }
  const double bytes = static_cast<double>(arrays.bytes());
  std::printf("%-16s %6ld KiB  %-9s  stream %6.1f GB/s   sum and apply %6.1f GB/s   ratio %.2f\n",
              c.name, footprint / kKiB, streaming ? "streaming" : "cached", bytes / stream / 1e9,
              bytes / update / 1e9, stream / update);
  std::fflush(stdout);
}

}  // namespace
}  // namespace muster::kernels

int main() {
  using namespace muster::kernels;
  using enum OptimizerRule;
  constexpr uint8_t kTreeOf8[] = {0, 1, 0, 2, 0, 1, 0, 3};
  const Case cases[] = {
      {"sgd, f32", kSgd, FloatType::kF32},
      {"sgd, bf16", kSgd, FloatType::kBf16},
      {"momentum, f32", kSgdMomentum, FloatType::kF32},
      {"momentum, bf16", kSgdMomentum, FloatType::kBf16},
      {"adam, f32", kAdam, FloatType::kF32},
      {"adam, bf16", kAdam, FloatType::kBf16},
      {"sgd, 2 x f32", kSgd, FloatType::kF32, 2},
      {"adam, 2 x f32", kAdam, FloatType::kF32, 2},
      {"sgd, 8 x f32", kSgd, FloatType::kF32, 8},
      {"sgd, tree of 8", kSgd, FloatType::kF32, 8, kTreeOf8},
  };
  for (const int64_t footprint : {512 * kKiB, 8 * kMiB, 256 * kMiB}) {
    for (const Case& c : cases) Compare(c, footprint, /*streaming=*/false);
  }
  for (const Case& c : cases) Compare(c, 256 * kMiB, /*streaming=*/true);
}
