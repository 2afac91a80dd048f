// Measures reading TFRecord files from the page cache, on one thread:
//   bazel run //lib/data/source:tfrecord_benchmark [-- FOLDER]
// The files take 700 MB in FOLDER (default: /tmp) and are removed. Tests take turns, and each
// figure is a median of rounds. Times are of the processor, so that other processes matter little.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/dataset.h"
#include "lib/data/format/testing/example.pb.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/source/tfrecord_dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kBatch = 256;
constexpr int64_t kTokens = 128;
constexpr int64_t kNumbers = 240;
constexpr int64_t kLargeRecords = 2'000;
constexpr int64_t kSmallRecords = 200'000;

double Seconds() {
  timespec time;
  CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Takes an image's bytes and does nothing, so that only reading is measured.
class NoImages : public ImageRows {
 public:
  absl::Status Training(absl::Span<const std::byte> file, SampleRef,
                        absl::Span<uint8_t> to) const override {
    to[0] = static_cast<uint8_t>(file.size());
    return absl::OkStatus();
  }
  absl::Status Evaluation(absl::Span<const std::byte> file, absl::Span<uint8_t> to) const override {
    return Training(file, {}, to);
  }
  absl::Span<const kernels::ByteValues> values() const override {
    return absl::MakeConstSpan(&values_, 1);
  }

 private:
  kernels::ByteValues values_ = {};
};

void AddInput(v1::Graph& graph, v1::DataSpec& spec, const std::string& name, v1::DType dtype,
              const std::vector<int64_t>& shape, const v1::ExampleInput& rule) {
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name(name);
  input.set_dtype(dtype);
  input.add_shape(-1);
  for (int64_t size : shape) input.add_shape(size);
  (*spec.mutable_tfrecord()->mutable_inputs())[name] = rule;
}

wire::Feature& FeatureOf(wire::Example& example, const std::string& name) {
  return (*example.mutable_features()->mutable_feature())[name];
}

enum class Sequence { kFiles, kFull, kBlocks };

const char* NameOf(Sequence sequence) {
  if (sequence == Sequence::kFiles) return "in order";
  return sequence == Sequence::kFull ? "full shuffle" : "block shuffle";
}

// Data of one kind, in a file.
struct Data {
  std::string path;
  v1::Graph graph;
  v1::DataSpec spec;

  void Write(int64_t records, const std::function<void(wire::Example&)>& fill) {
    std::ofstream file(path, std::ios::binary);
    for (int64_t i = 0; i < records; ++i) {
      wire::Example example;
      fill(example);
      std::string framed;
      AppendTfrecord(example.SerializeAsString(), framed);
      file << framed;
    }
    spec.mutable_tfrecord()->set_path(path);
  }

  v1::DataSpec Spec(bool checksums, Sequence sequence) const {
    v1::DataSpec opened = spec;
    opened.mutable_tfrecord()->set_checksums(checksums);
    opened.set_batch_size(kBatch);
    opened.set_last_batch(v1::LAST_BATCH_CONTINUE);
    if (sequence == Sequence::kFiles) opened.mutable_shuffle()->mutable_none();
    if (sequence == Sequence::kBlocks) opened.mutable_shuffle()->mutable_block();
    return opened;
  }

  std::unique_ptr<const Dataset> Open(const v1::DataSpec& opened) const {
    return OpenTfrecordDataset(opened, graph, {.block_bytes_max = int64_t{1} << 30},
                               [](const v1::ImageSpec&, uint64_t, int, int, int) {
                                 return std::make_unique<NoImages>();
                               })
        .value();
  }
};

Data Images(const std::string& folder, std::mt19937& random) {
  Data data{.path = folder + "/images.tfrecord"};
  v1::ExampleInput rule;
  rule.mutable_image();
  AddInput(data.graph, data.spec, "image", v1::DTYPE_F32, {1, 1, 4}, rule);
  data.Write(kLargeRecords, [&](wire::Example& example) {
    std::string bytes(100'000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    FeatureOf(example, "image").mutable_bytes_list()->add_value(bytes);
  });
  return data;
}

Data Numbers(const std::string& folder, std::mt19937& random) {
  Data data{.path = folder + "/numbers.tfrecord"};
  AddInput(data.graph, data.spec, "numbers", v1::DTYPE_F32, {kNumbers}, {});
  AddInput(data.graph, data.spec, "label", v1::DTYPE_I32, {}, {});
  data.Write(kSmallRecords, [&](wire::Example& example) {
    for (int i = 0; i < kNumbers; ++i) {
      FeatureOf(example, "numbers").mutable_float_list()->add_value(static_cast<float>(random()));
    }
    FeatureOf(example, "label").mutable_int64_list()->add_value(random() % 1000);
  });
  return data;
}

Data Tokens(const std::string& folder, std::mt19937& random) {
  Data data{.path = folder + "/tokens.tfrecord"};
  for (const char* name : {"input_ids", "input_mask", "segment_ids"}) {
    AddInput(data.graph, data.spec, name, v1::DTYPE_I32, {kTokens}, {});
  }
  v1::ExampleInput scatter;
  scatter.mutable_scatter()->set_positions("masked_lm_positions");
  scatter.mutable_scatter()->set_values("masked_lm_ids");
  scatter.mutable_scatter()->set_weights("masked_lm_weights");
  AddInput(data.graph, data.spec, "targets", v1::DTYPE_I32, {kTokens}, scatter);
  AddInput(data.graph, data.spec, "next_sentence_labels", v1::DTYPE_I32, {}, {});
  data.Write(kSmallRecords, [&](wire::Example& example) {
    auto integers = [&](const char* name, int count, const std::function<int64_t(int)>& value) {
      auto* list = FeatureOf(example, name).mutable_int64_list();
      for (int i = 0; i < count; ++i) list->add_value(value(i));
    };
    integers("input_ids", kTokens, [&](int) { return random() % 30'522; });
    integers("input_mask", kTokens, [&](int) { return 1; });
    integers("segment_ids", kTokens, [&](int i) { return i > 60; });
    integers("masked_lm_positions", 20, [&](int i) { return 6 * i; });
    integers("masked_lm_ids", 20, [&](int) { return random() % 30'522; });
    integers("next_sentence_labels", 1, [&](int) { return random() % 2; });
    for (int i = 0; i < 20; ++i) {
      FeatureOf(example, "masked_lm_weights").mutable_float_list()->add_value(i < 19 ? 1.f : 0.f);
    }
  });
  return data;
}

// Reads one epoch in the order of the job, from step `step` on, and moves `step` to its end. The
// order is computed meanwhile. Returns the seconds that all samples would take: an epoch omits an
// incomplete batch.
double ReadEpoch(const Dataset& dataset, const v1::Graph& graph, const SampleOrder& order,
                 int64_t& step) {
  std::vector<int64_t> row_bytes = RowBytes(dataset, graph);
  std::vector<std::vector<std::byte>> memory;
  for (const int64_t bytes : row_bytes) memory.emplace_back(bytes * kBatch);
  const std::vector<absl::Span<std::byte>> rows(memory.begin(), memory.end());
  const double begin = Seconds();
  int64_t done = 0;
  for (; done + kBatch <= dataset.samples(); done += kBatch, ++step) {
    const absl::Status status =
        dataset.ReadInOrder(step, order.SamplesOfStep(step, 0, kBatch), rows);
    CHECK(status.ok()) << status;
  }
  return (Seconds() - begin) * static_cast<double>(dataset.samples()) / static_cast<double>(done);
}

// The bare loop: reads runs of bytes into one buffer.
double ReadBare(const std::string& path, int64_t record_bytes,
                const std::vector<SampleRef>& samples) {
  const int file = open(path.c_str(), O_RDONLY);
  CHECK_GE(file, 0);
  std::vector<std::byte> memory(record_bytes);
  const double begin = Seconds();
  for (const SampleRef& sample : samples) {
    CHECK_EQ(pread(file, memory.data(), record_bytes, sample.sample * record_bytes), record_bytes);
  }
  const double seconds = Seconds() - begin;
  close(file);
  return seconds;
}

std::vector<SampleRef> Order(int64_t samples, bool is_random) {
  std::vector<SampleRef> order(samples);
  for (int64_t i = 0; i < samples; ++i) order[i].sample = i;
  if (is_random) std::ranges::shuffle(order, std::mt19937(5));
  return order;
}

struct Test {
  std::string name;
  int64_t records;
  std::function<double()> run;
  std::vector<double> seconds = {};
};

int Main(const std::string& folder) {
  std::mt19937 random(1);
  const Data images = Images(folder, random), numbers = Numbers(folder, random),
             tokens = Tokens(folder, random);
  std::vector<Test> tests;
  for (const Data* data : {&images, &numbers, &tokens}) {
    const int64_t records = data->Open(data->Spec(false, Sequence::kFiles))->samples();
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(data->path)) / records;
    for (const Sequence sequence : {Sequence::kFiles, Sequence::kFull, Sequence::kBlocks}) {
      const std::string name = absl::StrCat(std::filesystem::path(data->path).stem().string(),
                                            " of ", bytes, " bytes, ", NameOf(sequence), ", ");
      const std::vector<SampleRef> bare = Order(records, sequence != Sequence::kFiles);
      tests.push_back(
          {name + "bare pread", records, [=] { return ReadBare(data->path, bytes, bare); }});
      for (const bool checksums : {false, true}) {
        const v1::DataSpec spec = data->Spec(checksums, sequence);
        const std::shared_ptr<const Dataset> dataset = data->Open(spec);
        const SampleOrder order =
            SampleOrder::Create(spec, FactsOf(*dataset, spec, data->graph)).value();
        tests.push_back({absl::StrCat(name, checksums ? "" : "no ", "checksums"), records,
                         [=, step = int64_t{0}]() mutable {
                           return ReadEpoch(*dataset, data->graph, order, step);
                         }});
      }
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Test& test : tests) test.seconds.push_back(test.run());
  }
  double bare = 0;
  for (Test& test : tests) {
    std::ranges::sort(test.seconds);
    const double seconds = test.seconds[kRounds / 2];
    if (test.name.ends_with("bare pread")) bare = seconds;
    std::printf("%-56s %8.3f us a record, %8.0f records/s, %.2f of pread\n", test.name.c_str(),
                seconds / static_cast<double>(test.records) * 1e6,
                static_cast<double>(test.records) / seconds, bare / seconds);
  }
  for (const Data* data : {&images, &numbers, &tokens}) std::filesystem::remove(data->path);
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc > 1 ? argv[1] : "/tmp"); }
