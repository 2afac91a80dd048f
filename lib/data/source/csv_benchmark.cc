// Measures lines of Criteo's form that one thread indexes and reads per second of its core.
//   csv_benchmark FILE [PASSES]
// FILE has 40 columns, separated by tabs. Prints the processor seconds to index it, then the lines
// per processor second: in the order of the file, in blocks of 1,024 lines, and in random order.
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/data/dataset.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/source/csv_dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

constexpr int64_t kBatch = 1024;

void AddInput(v1::Graph& graph, const std::string& name, v1::DType dtype, int64_t elements) {
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  input.add_shape(-1);
  input.add_shape(elements);
}

// Returns the seconds that this thread has run. Other programs may use the cores meanwhile.
double ThreadSeconds() {
  timespec time;
  CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

std::unique_ptr<const Dataset> Open(const std::string& path) {
  v1::Graph graph;
  AddInput(graph, "counts", v1::DTYPE_F32, 13);
  AddInput(graph, "categories", v1::DTYPE_I32, 26);
  AddInput(graph, "click", v1::DTYPE_F32, 1);
  v1::DataSpec spec;
  spec.mutable_csv()->set_path(path);
  spec.mutable_csv()->set_criteo(true);
  auto& inputs = *spec.mutable_csv()->mutable_inputs();
  inputs["counts"].add_columns("2-14");
  inputs["counts"].mutable_number()->set_log(true);
  inputs["categories"].add_columns("15-40");
  inputs["categories"].mutable_hash()->set_buckets(100'000);
  inputs["click"].add_columns("label");
  inputs["click"].mutable_number();
  auto dataset = OpenCsvDataset(spec, graph, {});
  CHECK(dataset.ok()) << dataset.status();
  return *std::move(dataset);
}

// Returns lines per second of one pass. `stride` lines are neighbours.
double Pass(const Dataset& dataset, int64_t stride) {
  const int64_t blocks = dataset.samples() / stride;
  std::vector<SampleRef> samples(kBatch);
  std::vector<float> counts(kBatch * 13), clicks(kBatch);
  std::vector<int32_t> categories(kBatch * 26);
  auto bytes = [](auto& values) {
    return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * 4);
  };
  // A step that has no common factor with the number of blocks visits each block once.
  int64_t step = blocks / 2 + 7919;
  auto has_common = [&] {
    int64_t a = blocks, b = step;
    while (b != 0) a = std::exchange(b, a % b);
    return a != 1;
  };
  while (has_common()) ++step;
  const double start = ThreadSeconds();
  int64_t block = 0, read = 0;
  for (; read + kBatch <= blocks * stride; read += kBatch) {
    for (int64_t i = 0; i < kBatch; ++i) {
      samples[i] = {.epoch = 0, .sample = block * stride + (read + i) % stride};
      if ((read + i) % stride == stride - 1) block = (block + step) % blocks;
    }
    const absl::Status status =
        dataset.Read(samples, {bytes(counts), bytes(categories), bytes(clicks)});
    CHECK(status.ok()) << status;
  }
  return read / (ThreadSeconds() - start);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  CHECK_GE(argc, 2) << "csv_benchmark FILE [PASSES]";
  const double start = muster::ThreadSeconds();
  const auto dataset = muster::Open(argv[1]);
  std::printf("index       %.3f s, %lld lines\n", muster::ThreadSeconds() - start,
              static_cast<long long>(dataset->samples()));
  const int passes = argc > 2 ? std::atoi(argv[2]) : 3;
  for (int pass = 0; pass < passes; ++pass) {
    std::printf("file order  %.0f lines/s\n", muster::Pass(*dataset, dataset->samples()));
    std::printf("blocks      %.0f lines/s\n", muster::Pass(*dataset, muster::kBatch));
    std::printf("random      %.0f lines/s\n", muster::Pass(*dataset, 1));
  }
}
