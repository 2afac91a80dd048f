// Fuzzes lines of text with columns: data from untrusted sources that workers read.
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/source/csv_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "tests/fuzz/fuzz_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

// A model that reads x f32[B, 2] and ids i32[B, 1].
v1::Graph TwoInputs() {
  v1::Graph graph;
  for (const auto& [name, dtype, size] :
       {std::tuple("x", v1::DTYPE_F32, 2), std::tuple("ids", v1::DTYPE_I32, 1)}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(dtype);
    input.add_shape(-1);
    input.add_shape(size);
  }
  return graph;
}

v1::DataSpec Spec(const std::string& path) {
  v1::DataSpec spec;
  spec.mutable_csv()->set_path(path);
  auto& inputs = *spec.mutable_csv()->mutable_inputs();
  inputs["x"].add_columns("a");
  inputs["x"].add_columns("2");
  inputs["x"].mutable_number()->set_log(true);
  inputs["ids"].add_columns("c");
  inputs["ids"].mutable_hash()->set_buckets(1000);
  return spec;
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  const auto dataset = OpenCsvDataset(Spec(WriteFuzzFile("a.csv", bytes)), TwoInputs(), {});
  if (!dataset.ok()) {
    CHECK(!ReasonOf(dataset.status()).empty()) << dataset.status();
    return false;
  }
  // Lines that are read one by one give the same as all lines at once.
  const int64_t count = (*dataset)->samples();
  std::vector<float> x(2 * count), x_at_once(2 * count);
  std::vector<int32_t> ids(count), ids_at_once(count);
  const auto rows = [](auto& values, int64_t first, int64_t size) {
    return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data() + first), 4 * size);
  };
  std::vector<SampleRef> samples;
  bool is_ok = true;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back({.epoch = 0, .sample = i});
    const absl::Status one =
        (*dataset)->Read({&samples.back(), 1}, {rows(x, 2 * i, 2), rows(ids, i, 1)});
    if (one.ok()) {
      CHECK(0 <= ids[i] && ids[i] < 1000) << ids[i];
      CHECK(x[2 * i] >= 0 && x[2 * i + 1] >= 0) << x[2 * i];
      continue;
    }
    CHECK_EQ(ReasonOf(one), "DATA_DAMAGED") << one;
    is_ok = false;
  }
  const absl::Status all =
      (*dataset)->Read(samples, {rows(x_at_once, 0, 2 * count), rows(ids_at_once, 0, count)});
  CHECK_EQ(all.ok(), is_ok) << all;
  if (is_ok) CHECK(x == x_at_once && ids == ids_at_once);
  return is_ok;
}

std::vector<std::string> FuzzSeeds() {
  return {"a,b,c\n1,2,red\n3.5,,\"blue, or\n\"\"green\"\"\"\n-4e1,5,\n",
          "\xef\xbb\xbf"
          "c,b,a\r\nx,1,2\r\n\r\ny,3,4"};
}

int FuzzTestInputs() { return 5'000; }

}  // namespace muster
