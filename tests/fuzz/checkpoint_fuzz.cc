// Fuzzes the headers of safetensors files and the manifests of checkpoints. Users may pass such
// files to checkpoint.resume_from.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/checkpoint/manifest.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/checkpoint/strict_json.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

// The first byte of an input selects how the others are read.
constexpr char kTensors = 't';
constexpr char kManifest = 'm';
constexpr char kManifestOfContent = 'c';  // the fuzzer recomputes its checksum

// Writes the bytes to a file in memory, the same file each time, and returns its path.
std::string FileOf(absl::string_view bytes) {
  static const int file = memfd_create("fuzzed", MFD_CLOEXEC);
  CHECK_GE(file, 0);
  CHECK_EQ(ftruncate(file, 0), 0);
  CHECK_EQ(pwrite(file, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return absl::StrCat("/proc/self/fd/", file);
}

bool ReadTensors(absl::string_view bytes) {
  const std::string path = FileOf(bytes);
  const auto header = ReadSafetensorsHeader(path);
  if (!header.ok()) {
    CHECK(absl::IsDataLoss(header.status())) << header.status();
    CHECK(absl::StartsWith(header.status().message(), path + ": ")) << header.status();
    return false;
  }
  CHECK_EQ(header->file_bytes, static_cast<int64_t>(bytes.size()));
  int64_t end = header->tensors.empty() ? header->file_bytes : header->tensors[0].offset;
  for (const TensorEntry& tensor : header->tensors) {
    CHECK_EQ(tensor.offset, end) << tensor.name;
    CHECK_GE(tensor.bytes, 0) << tensor.name;
    end += tensor.bytes;
  }
  CHECK_EQ(end, header->file_bytes);
  return true;
}

bool ReadManifest(const std::string& json) {
  const auto manifest = Manifest::FromJson(json, "manifest.json");
  if (!manifest.ok()) {
    CHECK(absl::IsDataLoss(manifest.status()) || absl::IsFailedPrecondition(manifest.status()))
        << manifest.status();
    CHECK(absl::StartsWith(manifest.status().message(), "manifest.json: ")) << manifest.status();
    return false;
  }
  const auto again = Manifest::FromJson(*manifest->ToJson(), "manifest.json");
  CHECK(again.ok()) << again.status();
  CHECK_EQ(*again->ToJson(), *manifest->ToJson());
  return true;
}

// Reads a manifest after recomputing its checksum, so that the reader gets past that check.
bool ReadManifestOfContent(absl::string_view text) {
  auto json = ParseStrictJson(text);
  if (!json.ok() || !json->is_object()) return false;
  json->erase("manifest_sha256");
  const auto replace = nlohmann::json::error_handler_t::replace;
  (*json)["manifest_sha256"] = Sha256Of(json->dump(-1, ' ', false, replace));
  return ReadManifest(json->dump(-1, ' ', false, replace));
}

std::string TensorsSeed() {
  SafetensorsHeader header;
  header.metadata = {{"format", "pt"}, {"step", "3"}};
  header.tensors = {{.name = "w", .shape = {2, 3}}, {.name = "b", .shape = {}}};
  const std::string bytes = EncodeSafetensorsHeader(header);
  return bytes + std::string(header.file_bytes - bytes.size(), 'x');
}

std::string ManifestSeed() {
  Manifest manifest;
  manifest.job = "char-gpt-7";
  manifest.step = 1000;
  manifest.total_steps = 2000;
  manifest.spec.set_name("char-gpt");
  manifest.spec.mutable_model()->mutable_zoo()->set_name("gpt");
  manifest.spec.mutable_data()->set_batch_size(16);
  manifest.spec.mutable_data()->mutable_text()->set_path("text");
  manifest.spec.mutable_training()->mutable_optimizer()->mutable_adamw()->set_learning_rate(3e-3);
  manifest.spec.mutable_training()->set_seed(0xffffffffffffffff);
  manifest.slots = {"m", "v"};
  manifest.update_state.emplace().set_updates(1000);
  for (const char* name :
       {"model-00001-of-00001.safetensors", "optimizer-00001-of-00001.safetensors"}) {
    v1::CheckpointFile& file = manifest.files.emplace_back();
    file.set_name(name);
    file.set_size_bytes(1234);
    file.set_sha256(std::string(64, 'a'));
  }
  return *manifest.ToJson();
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  if (bytes.empty()) return false;
  const absl::string_view rest = bytes.substr(1);
  switch (bytes[0]) {
    case kTensors:
      return ReadTensors(rest);
    case kManifest:
      return ReadManifest(std::string(rest));
    case kManifestOfContent:
      return ReadManifestOfContent(rest);
    default:
      return false;
  }
}

std::vector<std::string> FuzzSeeds() {
  return {kTensors + TensorsSeed(), kManifest + ManifestSeed(),
          kManifestOfContent + ManifestSeed()};
}

int FuzzTestInputs() { return 20'000; }

}  // namespace muster
