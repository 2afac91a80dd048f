#include "lib/job/path_rules.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/job/resource_name.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// Compares component by component, because "/database" does not lie in "/data".
bool LiesIn(const fs::path& path, const fs::path& root) {
  return std::mismatch(root.begin(), root.end(), path.begin(), path.end()).first == root.end();
}

struct NamedPath {
  std::string field, path;
};

// Gets the field and the path of every file that a spec names.
using PathVisit = absl::FunctionRef<void(const std::string& field, std::string& path)>;

void VisitPaths(v1::DataSpec& data, PathVisit visit) {
  const auto visit_set = [&](const std::string& field, std::string* path) {
    if (!path->empty()) visit(field, *path);
  };
  if (data.has_text()) visit_set("data.text.path", data.mutable_text()->mutable_path());
  if (data.has_idx()) {
    v1::IdxData& idx = *data.mutable_idx();
    visit_set("data.idx.images", idx.mutable_images());
    visit_set("data.idx.labels", idx.mutable_labels());
    visit_set("data.idx.eval_images", idx.mutable_eval_images());
    visit_set("data.idx.eval_labels", idx.mutable_eval_labels());
  }
  if (!data.has_npy()) return;
  for (auto& [input, path] : *data.mutable_npy()->mutable_inputs()) {
    visit_set(absl::StrCat("data.npy.inputs.", input), &path);
  }
}

void VisitPaths(v1::JobSpec& spec, PathVisit visit) {
  if (!spec.model().onnx().path().empty()) {
    visit("model.onnx.path", *spec.mutable_model()->mutable_onnx()->mutable_path());
  }
  const std::string& external = spec.model().external().path();
  if (!external.empty() && !IsUploadedModel(external)) {
    visit("model.external.path", *spec.mutable_model()->mutable_external()->mutable_path());
  }
  if (spec.has_data()) VisitPaths(*spec.mutable_data(), visit);
  const std::string& from = spec.checkpoint().resume_from();
  if (!from.empty() && !ParseCheckpointRef(from)) {
    visit("checkpoint.resume_from", *spec.mutable_checkpoint()->mutable_resume_from());
  }
}

template <typename Spec>
std::vector<NamedPath> PathsOf(Spec spec) {
  std::vector<NamedPath> paths;
  VisitPaths(spec, [&](const std::string& field, std::string& path) {
    paths.push_back({field, path});
  });
  return paths;
}

}  // namespace

bool IsUploadedModel(absl::string_view path) {
  constexpr size_t kDigits = 64;  // of a SHA-256
  return absl::ConsumePrefix(&path, kUploadsPrefix) && absl::ConsumeSuffix(&path, ".safetensors") &&
         path.size() == kDigits && std::ranges::all_of(path, [](char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

absl::StatusOr<PathRules> PathRules::Parse(absl::string_view folders) {
  PathRules rules;
  for (const absl::string_view part : absl::StrSplit(folders, ',', absl::SkipWhitespace())) {
    const std::string folder(absl::StripAsciiWhitespace(part));
    std::error_code error;
    const fs::path root = fs::canonical(folder, error);
    if (error || !fs::is_directory(root, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", folder, "' is not a folder", error ? ": " : "", error.message()));
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

bool MakePathsAbsolute(v1::JobSpec& spec, const std::string& folder) {
  bool had_any = false;
  VisitPaths(spec, [&](const std::string&, std::string& path) {
    if (fs::path(path).is_absolute()) return;
    path = (fs::path(folder) / path).lexically_normal().string();
    had_any = true;
  });
  return had_any;
}

}  // namespace muster
