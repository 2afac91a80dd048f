#include "lib/job/path_rules.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Component by component: "/data" is not the beginning of "/database".
bool LiesIn(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

struct NamedPath {
  std::string field, path;
};

std::vector<NamedPath> PathsOf(const v1::DataSpec& data) {
  std::vector<NamedPath> paths = {{"data.text.path", data.text().path()},
                                  {"data.idx.images", data.idx().images()},
                                  {"data.idx.labels", data.idx().labels()},
                                  {"data.idx.eval_images", data.idx().eval_images()},
                                  {"data.idx.eval_labels", data.idx().eval_labels()}};
  for (const auto& [input, path] : data.npy().inputs()) {
    paths.push_back({absl::StrCat("data.npy.inputs.", input), path});
  }
  std::erase_if(paths, [](const NamedPath& named) { return named.path.empty(); });
  return paths;
}

std::vector<NamedPath> PathsOf(const v1::JobSpec& spec) {
  std::vector<NamedPath> paths = PathsOf(spec.data());
  paths.insert(paths.begin(), {"model.onnx.path", spec.model().onnx().path()});
  if (const std::string& from = spec.checkpoint().resume_from(); !ParseCheckpointRef(from)) {
    paths.push_back({"checkpoint.resume_from", from});
  }
  std::erase_if(paths, [](const NamedPath& named) { return named.path.empty(); });
  return paths;
}

}  // namespace

absl::StatusOr<PathRules> PathRules::Parse(absl::string_view folders) {
  PathRules rules;
  for (const absl::string_view part : absl::StrSplit(folders, ',', absl::SkipWhitespace())) {
    const std::string folder(absl::StripAsciiWhitespace(part));
    std::error_code error;
    const fs::path root = fs::canonical(folder, error);
    if (error || !fs::is_directory(root, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", folder, "' is no folder", error ? ": " : "", error.message()));
    }
    rules.roots_.push_back(root.string());
  }
  return rules;
}

absl::Status PathRules::Check(const std::string& path) const {
  if (any()) return absl::OkStatus();
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  const bool lies = !error && std::ranges::any_of(roots_, [&](const std::string& root) {
    return LiesIn(real, root);
  });
  if (lies) return absl::OkStatus();
  return WithReason(absl::PermissionDeniedError(absl::StrCat(
                        "'", path, "' lies in none of the folders that jobs may read here (",
                        absl::StrJoin(roots_, ", "), "; --data_roots)")),
                    "PATH_NOT_ALLOWED");
}

absl::Status PathRules::CheckWithin(const std::string& path) const {
  RETURN_IF_ERROR(Check(path));
  if (any()) return absl::OkStatus();
  std::error_code error;
  for (fs::directory_iterator file(path, error), end; !error && file != end;
       file.increment(error)) {
    RETURN_IF_ERROR(Check(file->path().string()));
  }
  return absl::OkStatus();
}

absl::Status PathRules::CheckData(const v1::DataSpec& data) const {
  for (const NamedPath& named : PathsOf(data)) {
    RETURN_IF_ERROR(AtField(CheckWithin(named.path), named.field));
  }
  return absl::OkStatus();
}

std::vector<FieldFault> PathRules::FaultsOf(const v1::JobSpec& spec) const {
  std::vector<FieldFault> faults;
  for (const NamedPath& named : PathsOf(spec)) {
    if (const absl::Status status = CheckWithin(named.path); !status.ok()) {
      faults.push_back({named.field, std::string(status.message())});
    }
  }
  return faults;
}

}  // namespace muster
