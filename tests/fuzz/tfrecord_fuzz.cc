// Fuzzes TFRecord files and the Examples in them, the data of a job.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/data/dataset.h"
#include "lib/data/file/data_file.h"
#include "lib/data/format/example.h"
#include "lib/data/format/testing/example.pb.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/source/example_rows.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

// The first byte of an input selects how the others are read.
constexpr char kFile = 'f';
constexpr char kExample = 'e';  // without checksums, which hide most of the parser

constexpr char kField[] = "data.tfrecord.path";

// A model with one input for each rule, and how Examples fill it.
struct Model {
  v1::Graph graph;
  v1::DataSpec spec;
  std::unique_ptr<const ExampleRows> rows;

  Model() {
    auto& inputs = *spec.mutable_tfrecord()->mutable_inputs();
    for (const auto& [name, dtype] : {std::pair{"numbers", v1::DTYPE_F32},
                                      {"ids", v1::DTYPE_I32},
                                      {"words", v1::DTYPE_I32},
                                      {"targets", v1::DTYPE_I32}}) {
      v1::GraphInput& input = *graph.add_inputs();
      input.set_name(name);
      input.set_dtype(dtype);
      input.add_shape(-1);
      input.add_shape(12);
      inputs[name];
    }
    inputs["words"].mutable_variable()->set_pad(1);
    v1::ScatterFeature& scatter = *inputs["targets"].mutable_scatter();
    scatter.set_positions("positions");
    scatter.set_values("values");
    scatter.set_weights("weights");
    rows = ExampleRows::Create(spec, graph, {}).value();
  }
};

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

bool ReadExample(absl::Span<const std::byte> example) {
  static const Model* const model = new Model();
  const absl::StatusOr<std::string> described = DescribeFeatures(example);
  CHECK(described.ok() || absl::IsInvalidArgument(described.status())) << described.status();
  std::vector<std::vector<std::byte>> memory;
  std::vector<absl::Span<std::byte>> rows;
  for (int i = 0; i < model->rows->inputs(); ++i) {
    rows.push_back(absl::MakeSpan(memory.emplace_back(model->rows->row_bytes(i))));
  }
  const absl::Status status =
      model->rows->Fill(example, {}, ExampleRows::Use::kTraining, /*row=*/0, rows);
  CHECK(status.ok() || absl::IsInvalidArgument(status)) << status;
  return status.ok();
}

bool ReadFile(absl::string_view bytes) {
  static const int descriptor = memfd_create("fuzzed", MFD_CLOEXEC);
  CHECK_GE(descriptor, 0);
  CHECK_EQ(ftruncate(descriptor, 0), 0);
  CHECK_EQ(pwrite(descriptor, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  const std::string path = absl::StrCat("/proc/self/fd/", descriptor);
  const auto file = DataFile::Open(path, kField).value();
  TfrecordScanner scanner(*file, kField);
  int64_t end = 0;
  auto check = [&](const absl::Status& status) {
    const bool is_damage = ReasonOf(status) == "DATA_DAMAGED" &&
                           absl::StrContains(status.message(), absl::StrCat(path, ": record "));
    CHECK(is_damage || ReasonOf(status) == "DATA_INVALID") << status;
    CHECK(absl::StartsWith(status.message(), absl::StrCat(kField, ": ", path))) << status;
    return false;
  };
  for (;;) {
    const absl::StatusOr<bool> next = scanner.Next();
    if (!next.ok()) return check(next.status());
    if (!*next) break;
    CHECK_EQ(scanner.offset(), end + kTfrecordHeaderBytes);
    end = scanner.offset() + scanner.bytes() + kTfrecordFooterBytes;
    CHECK_LE(end, file->bytes());
    const auto data = scanner.Data(TfrecordScanner::Check::kChecksum);
    if (!data.ok()) return check(data.status());
    if (!ReadExample(*data)) return false;
  }
  CHECK_EQ(end, file->bytes());
  return true;
}

std::string ExampleSeed(int number) {
  wire::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  const std::string numbers = "numbers", ids = "ids", words = "words", positions = "positions",
                    values = "values", weights = "weights", text = "text";
  for (int i = 0; i < 12; ++i) {
    features[numbers].mutable_float_list()->add_value(static_cast<float>(i * number));
    features[ids].mutable_int64_list()->add_value(i << (number * i % 24));
  }
  for (int i = 0; i < number; ++i) {
    features[words].mutable_int64_list()->add_value(-i);
    features[positions].mutable_int64_list()->add_value(i);
    features[values].mutable_int64_list()->add_value(100 * i);
    features[weights].mutable_float_list()->add_value(1);
  }
  for (const std::string& name : {positions, values}) features[name].mutable_int64_list();
  features[weights].mutable_float_list();
  features[text].mutable_bytes_list()->add_value("more");
  return example.SerializeAsString();
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  if (bytes.empty()) return false;
  const absl::string_view rest = bytes.substr(1);
  switch (bytes[0]) {
    case kFile:
      return ReadFile(rest);
    case kExample:
      return ReadExample(BytesOf(rest));
    default:
      return false;
  }
}

std::vector<std::string> FuzzSeeds() {
  std::string file(1, kFile);
  for (int i = 0; i < 3; ++i) AppendTfrecord(ExampleSeed(i), file);
  std::vector<std::string> seeds = {file};
  for (int i = 0; i < 4; ++i) seeds.push_back(kExample + ExampleSeed(3 * i));
  return seeds;
}

int FuzzTestInputs() { return 100'000; }

}  // namespace muster
