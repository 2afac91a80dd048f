// Measures bytes of gradient packed and unpacked per second on one core, for a chunk of 4 MiB.
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "lib/codec/codec.h"
#include "lib/codec/one_chunk_plan.h"

namespace muster {
namespace {

constexpr int64_t kRows = 1024;
constexpr int64_t kColumns = 1024;

std::vector<float> NormalGradient() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(kRows * kColumns);
  for (float& x : gradient) x = normal(random);
  return gradient;
}

void Report(benchmark::State& state, const WireFormat& format) {
  state.SetBytesProcessed(state.iterations() * format.elements * sizeof(float));
  state.counters["ratio"] = static_cast<double>(format.elements * sizeof(float)) / format.bytes;
}

void Encode(benchmark::State& state, WireFormat format) {
  const std::vector<float> gradient = NormalGradient();
  std::vector<std::byte> payload(format.bytes);
  const auto encoder = ChunkEncoder::Create(format, 1);
  for (auto _ : state) encoder->Encode(gradient, absl::MakeSpan(payload));
  Report(state, format);
}

void Unpack(benchmark::State& state, WireFormat format) {
  std::vector<float> gradient = NormalGradient();
  std::vector<std::byte> payload(format.bytes);
  ChunkEncoder::Create(format, 1)->Encode(gradient, absl::MakeSpan(payload));
  for (auto _ : state) CHECK(Decode(format, payload, absl::MakeSpan(gradient)).ok());
  Report(state, format);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const auto& [name, format] : muster::FormatsOf(muster::kRows, muster::kColumns)) {
    benchmark::RegisterBenchmark(("encode/" + name).c_str(), muster::Encode, format);
    benchmark::RegisterBenchmark(("decode/" + name).c_str(), muster::Unpack, format);
  }
  benchmark::RunSpecifiedBenchmarks();
}
