#include "tests/input_sources.h"

#include <stdlib.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/convert/convert.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/data/format/testing/example.pb.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/format/zip_writer.h"
#include "tests/training_cluster.h"

namespace muster {
namespace {

// A job that counts has a linear model with a weight for each sample. An input is 1 at the place of
// its sample and 0 elsewhere. The target is so large that the error is the same at every step. The
// learning rate makes of its gradient exactly 1, so a weight is its initial value, which is below a
// half, plus the number of times that its sample was trained. All sums are exact in fp32.
constexpr int kCounted = 100;  // samples to train on; no multiple of the batch
constexpr int kHeldOut = 12;
constexpr int kWeights = 2 * (kCounted + kHeldOut);
constexpr float kTarget = 0x1p40f;
constexpr double kLearningRate = kInputBatch / (2.0 * kTarget);

constexpr int kCountingSteps = 1509;  // ends within an epoch, whatever the order is
constexpr int kImageSteps = 480;
constexpr int kBertSteps = 160;

std::string NewFolder() {
  std::string path = absl::StrCat(testing::TempDir(), "/source.XXXXXX");
  EXPECT_NE(mkdtemp(path.data()), nullptr) << path;
  return path;
}

void Write(const std::string& path, absl::string_view content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  EXPECT_TRUE(file.good()) << path;
}

std::vector<float> OneHot(int sample) {
  std::vector<float> row(kWeights);
  row[sample] = 1;
  return row;
}

std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string Npy(const std::string& shape, absl::string_view values) {
  std::string header =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", shape, "), }");
  header.resize(117, ' ');
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\x00\x76\x00", 10), header, "\n", values);
}

// Returns an .npy file with the rows of all samples.
std::string InputNpy() {
  std::string rows;
  for (int i = 0; i < kCounted + kHeldOut; ++i) rows += Bytes(OneHot(i));
  return Npy(absl::StrCat(kCounted + kHeldOut, ", ", kWeights), rows);
}

std::string TargetNpy() {
  return Npy(absl::StrCat(kCounted + kHeldOut, ", 1"),
             Bytes(std::vector<float>(kCounted + kHeldOut, kTarget)));
}

std::string Holdout() {
  return absl::StrFormat("%.17g", kHeldOut / static_cast<double>(kCounted + kHeldOut));
}

// Returns a job that counts. Sources of files have the samples from `first` on.
InputSource Counting(const std::string& name, std::string data,
                     std::vector<CountedSamples> counted) {
  return {.name = name,
          .model = absl::StrCat("{zoo: {name: linear, args: {inputs: ", kWeights, "}}}"),
          .data = std::move(data),
          .training = absl::StrFormat("optimizer: {sgd: {learning_rate: %.17g}}, "
                                      "parameter_groups: [{match: [bias], frozen: true}]",
                                      kLearningRate),
          .steps = kCountingSteps,
          .counted = std::move(counted)};
}

InputSource NpySource() {
  const std::string folder = NewFolder();
  Write(folder + "/input.npy", InputNpy());
  Write(folder + "/target.npy", TargetNpy());
  return Counting("npy",
                  absl::StrCat("  npy: {inputs: {input: ", folder, "/input.npy, target: ", folder,
                               "/target.npy}, holdout: ", Holdout(), "}\n"),
                  {{0, kCounted}});
}

InputSource NpzSource() {
  const std::string path = NewFolder() + "/data.npz";
  ZipWriter writer;
  std::string archive;
  for (const auto& [name, content] :
       {std::pair("x.npy", InputNpy()), std::pair("y.npy", TargetNpy())}) {
    const auto* const bytes = reinterpret_cast<const Bytef*>(content.data());
    archive += writer.Next(name, crc32_z(0, bytes, content.size()), content.size()) + content;
  }
  Write(path, archive + writer.End());
  return Counting("npz",
                  absl::StrCat("  npz: {path: ", path,
                               ", inputs: {input: x, target: y}, holdout: ", Holdout(), "}\n"),
                  {{0, kCounted}});
}

// Writes all samples from `first` on into two files, each of them with `write`.
void WriteHalves(const std::string& folder, const std::string& extension, int first,
                 const std::function<std::string(int first, int last)>& write) {
  const int half = first + (kCounted + kHeldOut) / 2, end = first + kCounted + kHeldOut;
  Write(absl::StrCat(folder, "/0", extension), write(first, half));
  Write(absl::StrCat(folder, "/1", extension), write(half, end));
}

InputSource CsvSource() {
  const std::string folder = NewFolder();
  WriteHalves(folder, ".csv", 0, [](int first, int last) {
    std::string lines;
    for (int i = first; i < last; ++i) {
      for (const float value : OneHot(i)) absl::StrAppend(&lines, value, ",");
      absl::StrAppend(&lines, absl::StrFormat("%.0f\n", kTarget));
    }
    return lines;
  });
  InputSource source =
      Counting("csv",
               absl::StrCat("  csv:\n    path: ", folder, "\n    holdout: ", Holdout(),
                            "\n    inputs:\n      input: {columns: [\"1-", kWeights,
                            "\"], number: {}}\n      target: {columns: [\"", kWeights + 1,
                            "\"], number: {}}\n"),
               {{0, kCounted}});
  source.folder = folder;
  return source;
}

// Returns the folder of tar files with an array and a JSON object for each sample.
std::string MakeTar(int first) {
  std::string folder = NewFolder();
  WriteHalves(folder, ".tar", first, [](int first, int last) {
    std::string archive;
    for (int i = first; i < last; ++i) {
      archive += TarMemberBytes(absl::StrCat(i, ".npy"),
                                Npy(absl::StrCat(kWeights, ","), Bytes(OneHot(i)))) +
                 TarMemberBytes(absl::StrCat(i, ".json"),
                                absl::StrFormat("{\"wanted\": {\"y\": %.0f}}", kTarget));
    }
    return archive + TarEnd();
  });
  return folder;
}

std::string MakeTfrecords(int first) {
  std::string folder = NewFolder();
  WriteHalves(folder, ".tfrecord", first, [](int first, int last) {
    std::string records;
    for (int i = first; i < last; ++i) {
      wire::Example example;
      auto& features = *example.mutable_features()->mutable_feature();
      for (const float value : OneHot(i)) features["x"].mutable_float_list()->add_value(value);
      features["y"].mutable_float_list()->add_value(kTarget);
      AppendTfrecord(example.SerializeAsString(), records);
    }
    return records;
  });
  return folder;
}

InputSource MixtureSource() {
  constexpr int kSecond = kCounted + kHeldOut;
  return Counting(
      "mixture",
      absl::StrCat("  mixture:\n    parts:\n"
                   "      - weight: 0.7\n        data:\n          tar:\n            path: ",
                   MakeTar(0), "\n            holdout: ", Holdout(),
                   "\n            inputs:\n"
                   "              input: {extension: npy, array: {}}\n"
                   "              target: {extension: json, json: {field: wanted.y}}\n"
                   "      - weight: 0.3\n        data:\n          tfrecord:\n            path: ",
                   MakeTfrecords(kSecond), "\n            holdout: ", Holdout(),
                   "\n            inputs:\n"
                   "              input: {fixed: {feature: x}}\n"
                   "              target: {fixed: {feature: y}}\n"),
      {{0, kCounted}, {kSecond, kCounted}});
}

// ---------------------------------------------------------------- jobs that do not count

constexpr char kAdamw[] = "optimizer: {adamw: {learning_rate: 1e-3}}";

InputSource ImageSource(const std::string& name, const std::string& data) {
  return {
      .name = name,
      .model = "{zoo: {name: resnet50, args: {image: 32, classes: 4, blocks: \"1\", width: 4}}}",
      .data = absl::StrCat(
          data,
          "  image:\n"
          "    train: [random_resized_crop: {size: 32}, random_flip: {}, rand_augment: {}]\n"
          "    evaluate: [resize: {size: 36}, center_crop: {size: 32}]\n"
          "    mean: [0.5, 0.4, 0.3]\n"
          "    std: [0.2, 0.2, 0.3]\n"),
      .training = kAdamw,
      .steps = kImageSteps};
}

InputSource TarSource() {
  const std::string folder = NewFolder() + "/shards";
  const auto made = Convert("examples/data/emoji", folder, {.shard_bytes = 200'000});
  EXPECT_TRUE(made.ok()) << made.status();
  return ImageSource("tar", absl::StrCat("  tar:\n    path: ", folder,
                                         "\n    holdout: 0.1\n    inputs:\n"
                                         "      input: {extension: jpg, image: {}}\n"
                                         "      target: {extension: cls, integer: {}}\n"));
}

InputSource TfrecordSource() {
  return {.name = "tfrecord",
          .model =
              "{zoo: {name: bert, args: {layers: 1, heads: 2, channels: 32, context: 64, "
              "positions: 64, vocabulary: 2048}}}",
          .data =
              "  tfrecord:\n    path: examples/data/bert/*.tfrecord\n    holdout: 0.1\n"
              "    inputs:\n"
              "      tokens: {fixed: {feature: input_ids}}\n"
              "      segments: {fixed: {feature: segment_ids}}\n"
              "      masked_tokens: {scatter: {positions: masked_lm_positions, values: "
              "masked_lm_ids, weights: masked_lm_weights}}\n"
              "      next_sentence: {fixed: {feature: next_sentence_labels}}\n",
          .training = kAdamw,
          .steps = kBertSteps};
}

InputSource IdxSource() {
  const std::string folder = MakeIdxData(/*samples=*/112, /*size=*/8, /*seed=*/5);
  return {.name = "idx",
          .model = "{zoo: {name: mlp, args: {inputs: 64, hidden: \"16\"}}}",
          .data = absl::StrCat("  idx: {images: ", folder, "/images, labels: ", folder,
                               "/labels, holdout: 0.1}\n"),
          .training = kAdamw,
          .steps = kCountingSteps};
}

InputSource TextSource() {
  return {.name = "text",
          .model = "{zoo: {name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32}}}",
          .data = "  text: {path: examples/data/licences, holdout: 0.1}\n",
          .training = kAdamw,
          .steps = kImageSteps};
}

const std::map<std::string, InputSource (*)()>& Sources() {
  static const auto* const sources = new std::map<std::string, InputSource (*)()>{
      {"csv", CsvSource},
      {"idx", IdxSource},
      {"images",
       [] {
         return ImageSource("images", "  images: {path: examples/data/emoji, holdout: 0.2}\n");
       }},
      {"mixture", MixtureSource},
      {"npy", NpySource},
      {"npz", NpzSource},
      {"tar", TarSource},
      {"text", TextSource},
      {"tfrecord", TfrecordSource},
  };
  return *sources;
}

}  // namespace

InputSource MakeInputSource(const std::string& name) { return Sources().at(name)(); }

std::vector<std::string> InputSourceNames() {
  std::vector<std::string> names;
  for (const auto& [name, make] : Sources()) names.push_back(name);
  return names;
}

std::vector<int64_t> TimesTrained(const std::map<std::string, std::vector<float>>& parameters) {
  std::vector<int64_t> times;
  for (const float weight : parameters.at("weight")) times.push_back(std::lround(weight));
  return times;
}

}  // namespace muster
