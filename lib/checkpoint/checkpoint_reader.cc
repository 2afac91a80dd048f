#include "lib/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/checkpoint/folder.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/file/regular_file.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// The number of files that are hashed in parallel: hashing is slower than a disk.
constexpr int kVerifiedAtOnceMax = 4;
constexpr int64_t kManifestBytesMax = 16 << 20;  // a spec and a few file names are kilobytes

absl::Status NamingDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) ? WithReason(status, "CHECKPOINT_DAMAGED") : status;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  absl::StatusOr<DiskFile> file = DiskFile::OpenToRead(path);
  std::error_code error;
  if (!file.ok() && !std::filesystem::exists(path, error) && !error) {
    return absl::NotFoundError(absl::StrCat(folder, ": not a committed checkpoint (no ",
                                            kManifestName, " on ", HostName(), ")"));
  }
  RETURN_IF_ERROR(file.status());
  ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
  if (bytes > kManifestBytesMax) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", bytes, " bytes, ", kManifestBytesMax, " is the most"));
  }
  std::string json(bytes, '\0');
  RETURN_IF_ERROR(file->ReadAt(0, {reinterpret_cast<std::byte*>(json.data()), json.size()}));
  return Manifest::FromJson(json, path);
}

// Helper threads of Verify(). All calls in the process together use at most kHelpersMax of them.
class Helpers {
 public:
  // Takes up to `wanted` helpers, without waiting.
  explicit Helpers(int wanted) {
    for (; count_ < wanted; ++count_) {
      if (in_use_.fetch_add(1) < CheckpointReader::kHelpersMax) continue;
      --in_use_;
      return;
    }
  }
  ~Helpers() { in_use_ -= count_; }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  int count() const { return count_; }

 private:
  static std::atomic<int> in_use_;
  int count_ = 0;
};

std::atomic<int> Helpers::in_use_ = 0;

class FolderReader : public CheckpointReader {
 public:
  FolderReader(std::string path, Manifest manifest)
      : path_(std::move(path)), manifest_(std::move(manifest)) {}

  absl::Status OpenFiles() {
    const auto step = ParseStepFolderName(std::filesystem::path(path_).filename().native());
    if (step && *step != manifest_.step) {
      return absl::DataLossError(
          absl::StrCat(path_, "/", kManifestName, ": is of step ", manifest_.step));
    }
    for (const v1::CheckpointFile& file : manifest_.files) RETURN_IF_ERROR(OpenFile(file));
    const absl::Status fitting = CheckSlots();
    // Tensors that do not fit together are in two files; only the hashes tell which file is
    // damaged.
    if (!fitting.ok()) RETURN_IF_ERROR(Verify(/*stop=*/nullptr));
    return fitting;
  }

  const Manifest& manifest() const override { return manifest_; }

  v1::Checkpoint ToProto(absl::string_view job) const override {
    return DescribeCheckpoint(manifest_, job, path_);
  }

  // Finishes every file that a thread has begun. So the reported file is always the first damaged
  // one, whichever thread finds damage first.
  absl::Status Verify(const std::function<bool()>& stop) const override {
    std::vector<absl::Status> results(files_.size());
    std::atomic<size_t> next = 0;
    std::atomic<bool> failed = false;
    const auto verify_some = [&] {
      for (size_t i = next++; i < files_.size() && !failed; i = next++) {
        results[i] = VerifyFile(i, stop);
        if (!results[i].ok()) failed = true;
      }
    };
    {
      const Helpers helpers(std::min(static_cast<int>(files_.size()), kVerifiedAtOnceMax) - 1);
      std::vector<std::jthread> others;
      for (int i = 0; i < helpers.count(); ++i) others.emplace_back(verify_some);
      verify_some();
    }
    for (const absl::Status& result : results) RETURN_IF_ERROR(result);
    return absl::OkStatus();
  }

  std::map<std::string, std::vector<int64_t>> Shapes() const override {
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const auto& [name, tensor] : values_) {
      shapes[name].assign(tensor.shape.begin(), tensor.shape.end());
    }
    return shapes;
  }

  absl::Status CheckFits(const v1::Graph& graph) const override {
    auto mismatch = [&](absl::string_view parameter, absl::string_view what) {
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat(path_, ": parameter '", parameter, "' ", what)),
          "CHECKPOINT_MISMATCH");
    };
    for (const v1::Parameter& parameter : graph.parameters()) {
      auto found = values_.find(parameter.name());
      if (found == values_.end()) return mismatch(parameter.name(), "is missing");
      const std::vector<int64_t>& shape = found->second.shape;
      if (!std::equal(shape.begin(), shape.end(), parameter.shape().begin(),
                      parameter.shape().end())) {
        return mismatch(parameter.name(),
                        absl::StrCat("is [", absl::StrJoin(shape, ", "), "], the model has [",
                                     absl::StrJoin(parameter.shape(), ", "), "]"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(absl::string_view parameter, absl::string_view slot, int64_t offset,
                    absl::Span<float> out) const override {
    const StoredTensor* tensor = Find(parameter, slot);
    if (tensor == nullptr) {
      return absl::NotFoundError(absl::StrCat(path_, ": no ", slot.empty() ? "values" : slot,
                                              " of parameter '", parameter, "'"));
    }
    const int64_t elements = tensor->bytes / static_cast<int64_t>(sizeof(float)),
                  wanted = out.size();
    if (offset < 0 || wanted > elements || offset > elements - wanted) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": elements [", offset, ", + ", wanted,
                                                     ") of '", parameter, "', which has ",
                                                     elements));
    }
    return NamingDamage(files_[tensor->file].ReadAt(
        tensor->offset + offset * static_cast<int64_t>(sizeof(float)),
        {reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(float)}));
  }

 private:
  absl::Status VerifyFile(size_t index, const std::function<bool()>& stop) const {
    const v1::CheckpointFile& expected = manifest_.files[index];
    const absl::StatusOr<std::string> sha256 = files_[index].Sha256(stop);
    if (!sha256.ok()) return NamingDamage(sha256.status());
    if (*sha256 == expected.sha256()) return absl::OkStatus();
    return NamingDamage(absl::DataLossError(
        absl::StrCat(files_[index].path(), ": SHA-256 over ", expected.size_bytes(), " bytes is ",
                     *sha256, ", the manifest says ", expected.sha256())));
  }

  struct StoredTensor {
    int file = 0;
    std::vector<int64_t> shape;
    int64_t offset = 0;  // from the start of the file
    int64_t bytes = 0;
  };
  using Tensors = absl::flat_hash_map<std::string, StoredTensor>;

  absl::Status OpenFile(const v1::CheckpointFile& listed) {
    const std::string path = absl::StrCat(path_, "/", listed.name());
    absl::StatusOr<DiskFile> file = DiskFile::OpenToRead(path);
    if (absl::IsNotFound(file.status()))
      return absl::DataLossError(absl::StrCat(path, ": missing"));
    RETURN_IF_ERROR(file.status());
    ASSIGN_OR_RETURN(const int64_t bytes, file->Size());
    if (bytes != listed.size_bytes()) {
      return absl::DataLossError(absl::StrCat(path, ": ends at offset ", bytes,
                                              ", the manifest says ", listed.size_bytes()));
    }
    ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(path));
    auto step = header.metadata.find("step");
    if (step == header.metadata.end() || step->second != absl::StrCat(manifest_.step)) {
      return absl::DataLossError(absl::StrCat(path, ": not of step ", manifest_.step));
    }
    Tensors& tensors = absl::StartsWith(listed.name(), "model-") ? values_ : slots_;
    for (TensorEntry& tensor : header.tensors) {
      if (tensor.dtype != "F32") {
        return absl::DataLossError(
            absl::StrCat(path, ": tensor '", tensor.name, "' is ", tensor.dtype, ", not F32"));
      }
      StoredTensor stored{static_cast<int>(files_.size()), std::move(tensor.shape), tensor.offset,
                          tensor.bytes};
      if (!tensors.emplace(tensor.name, std::move(stored)).second) {
        return absl::DataLossError(
            absl::StrCat(path, ": tensor '", tensor.name, "' is in another file as well"));
      }
    }
    files_.push_back(*std::move(file));
    return absl::OkStatus();
  }

  // Checks that every parameter has every slot, in its own shape, and that there are no other
  // tensors.
  absl::Status CheckSlots() const {
    for (const auto& [parameter, values] : values_) {
      for (const std::string& slot : manifest_.slots) {
        const StoredTensor* tensor = Find(parameter, slot);
        if (tensor == nullptr || tensor->shape != values.shape) {
          return absl::DataLossError(absl::StrCat(path_, ": optimizer slot '",
                                                  TensorName(parameter, slot),
                                                  "' is missing or of another shape"));
        }
      }
    }
    if (values_.empty() || slots_.size() != values_.size() * manifest_.slots.size()) {
      return absl::DataLossError(absl::StrCat(path_, ": ", slots_.size(), " optimizer tensors for ",
                                              values_.size(), " parameters with ",
                                              manifest_.slots.size(), " slots"));
    }
    return absl::OkStatus();
  }

  const StoredTensor* Find(absl::string_view parameter, absl::string_view slot) const {
    const Tensors& tensors = slot.empty() ? values_ : slots_;
    auto found = tensors.find(TensorName(parameter, slot));
    return found == tensors.end() ? nullptr : &found->second;
  }

  const std::string path_;
  const Manifest manifest_;
  std::vector<DiskFile>
      files_;  // as manifest_.files; open, so that a pruned checkpoint can still be read to its end
  Tensors values_;  // by parameter
  Tensors slots_;   // by TensorName()
};

}  // namespace

std::string CheckpointPath(const std::string& directory, int64_t step) {
  return absl::StrCat(directory, "/", StepFolderName(step));
}

absl::StatusOr<std::vector<int64_t>> ListCheckpointSteps(const std::string& directory) {
  ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(directory));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    std::optional<int64_t> step = ParseStepFolderName(name);
    if (!step) continue;
    std::error_code error;
    const bool is_there =
        std::filesystem::exists(absl::StrCat(directory, "/", name, "/", kManifestName), error);
    if (is_there || error) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());  // names with more than eight digits are not in order
  return steps;
}

absl::StatusOr<std::unique_ptr<const CheckpointReader>> CheckpointReader::Open(
    const std::string& path) {
  absl::StatusOr<Manifest> manifest = ReadManifest(path);
  if (!manifest.ok()) return NamingDamage(manifest.status());
  auto reader = std::make_unique<FolderReader>(path, *std::move(manifest));
  if (absl::Status opened = reader->OpenFiles(); !opened.ok()) return NamingDamage(opened);
  return reader;
}

}  // namespace muster
