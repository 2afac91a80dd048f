#include "lib/data/hostile/hostile_file.h"

#include <sys/resource.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/image/image_maker.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// The largest of the files that are written here takes 17 MiB. The rest is for the sanitizers.
constexpr int64_t kGrowthMax = int64_t{384} << 20;
constexpr size_t kMessageBytesMax = 1500;

// Returns the largest resident memory of this process so far.
int64_t PeakBytes() {
  rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} << 10 : 0;
}

}  // namespace

HostileFile Damaged(std::string name, std::string bytes, std::vector<std::string> parts) {
  return {std::move(name), std::move(bytes), std::move(parts)};
}

HostileFile Truncated(std::string name, std::string bytes, std::vector<std::string> parts) {
  return {std::move(name), std::move(bytes), std::move(parts), "DATA_TRUNCATED"};
}

HostileFile Invalid(std::string name, std::string bytes, std::vector<std::string> parts) {
  return {std::move(name), std::move(bytes), std::move(parts), "DATA_INVALID",
          absl::StatusCode::kInvalidArgument};
}

HostileFile TooSmall(std::string name, std::string bytes, std::vector<std::string> parts) {
  return {std::move(name), std::move(bytes), std::move(parts), "DATA_TOO_SMALL",
          absl::StatusCode::kInvalidArgument};
}

std::string Patched(std::string bytes, size_t at, absl::string_view others) {
  EXPECT_LE(at + others.size(), bytes.size());
  return bytes.replace(at, others.size(), others.data(), others.size());
}

std::string LittleEndian(uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(number >> (8 * i)));
  return text;
}

std::string EmptyFolder(const std::string& name) {
  const std::string folder = (fs::path(testing::TempDir()) / name).string();
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

std::string WriteFile(const std::string& path, absl::string_view bytes) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path;
}

v1::Graph NumbersGraph() {
  v1::Graph graph;
  v1::GraphInput& x = *graph.add_inputs();
  x.set_name("x");
  x.set_dtype(v1::DTYPE_F32);
  for (const int64_t size : {-1, 2}) x.add_shape(size);
  v1::GraphInput& target = *graph.add_inputs();
  target.set_name("target");
  target.set_dtype(v1::DTYPE_I32);
  target.add_shape(-1);
  v1::Parameter& head = *graph.add_parameters();
  head.set_name("head");
  for (const int64_t size : {10, 2}) head.add_shape(size);
  const auto add = [&](const char* op, std::vector<const char*> inputs,
                       std::vector<const char*> outputs) {
    v1::Node& node = *graph.add_nodes();
    node.set_name(outputs[0]);
    node.set_op(op);
    for (const char* name : inputs) node.add_inputs(name);
    for (const char* name : outputs) node.add_outputs(name);
  };
  add("Linear", {"x", "head"}, {"logits"});
  add("SoftmaxCrossEntropy", {"logits", "target"}, {"loss", "lse"});
  graph.set_loss("loss");
  return graph;
}

std::vector<absl::Status> ErrorsOf(const v1::DataSpec& spec, const v1::Graph& graph,
                                   const DataOptions& options) {
  DataOptions with_images = options;
  with_images.make_images = ImageMaker::Create;
  const auto dataset = OpenDataset(spec, graph, with_images);
  if (!dataset.ok()) return {dataset.status()};
  std::vector<std::vector<std::byte>> memory;
  std::vector<absl::Span<std::byte>> rows;
  for (const int64_t bytes : RowBytes(**dataset, graph)) memory.emplace_back(bytes);
  for (std::vector<std::byte>& row : memory) rows.push_back(absl::MakeSpan(row));
  std::vector<absl::Status> errors;
  for (int64_t i = 0; i < (*dataset)->samples(); ++i) {
    const SampleRef sample{.sample = i};
    const absl::Status status = (*dataset)->Read(absl::MakeConstSpan(&sample, 1), rows);
    if (!status.ok()) errors.push_back(status);
  }
  return errors;
}

void ExpectOneError(const HostileFile& file, const std::string& path,
                    const std::function<std::vector<absl::Status>()>& errors) {
  SCOPED_TRACE(file.name);
  // A crash ends the program before a trace is printed.
  std::cout << "  " << file.name << std::endl;
  const int64_t before = PeakBytes();
  const std::vector<absl::Status> found = errors();
  EXPECT_LT(PeakBytes() - before, kGrowthMax);
  ASSERT_EQ(found.size(), 1u) << (found.empty() ? "no error" : found[1].message());
  const std::string message(found[0].message());
  EXPECT_EQ(found[0].code(), file.code) << message;
  EXPECT_EQ(ReasonOf(found[0]), file.reason) << message;
  EXPECT_THAT(message, testing::HasSubstr(path));
  for (const std::string& part : file.parts) EXPECT_THAT(message, testing::HasSubstr(part));
  EXPECT_LT(message.size(), kMessageBytesMax);
}

void ExpectOneErrorEach(absl::Span<const HostileFile> files, const std::string& path,
                        const v1::DataSpec& spec, const v1::Graph& graph) {
  for (const HostileFile& file : files) {
    WriteFile(path, file.bytes);
    ExpectOneError(file, path, [&] { return ErrorsOf(spec, graph); });
  }
}

}  // namespace muster
