#include "lib/job/path_rules.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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

constexpr absl::string_view kWildcards = "*?{";
constexpr int kEntriesChecked = 10'000;  // of a folder

bool IsDots(absl::string_view text) { return text.find_first_not_of('.') == text.npos; }

// Returns whether a component of a pattern can stand for "." or "..", or for several components.
bool CanLeaveItsFolder(absl::string_view component) {
  if (component == "." || component == "..") return true;
  std::string outside;
  bool has_dots = false;
  int depth = 0;
  for (const absl::string_view piece : absl::StrSplit(component, absl::ByAnyChar("{,}"))) {
    if (depth == 0) absl::StrAppend(&outside, piece);
    if (depth > 0 && IsDots(piece)) has_dots = true;
    const size_t end = piece.data() + piece.size() - component.data();
    if (end < component.size()) depth += component[end] == '{' ? 1 : component[end] == '}' ? -1 : 0;
    if (depth < 0) return true;
  }
  return depth != 0 || (has_dots && IsDots(outside));
}

// Returns the folder that all matches of a pattern lie in, or the path itself without wildcards.
// nullopt: the pattern could leave that folder.
std::optional<std::string> FixedPart(const std::string& path) {
  const size_t wildcard = path.find_first_of(std::string(kWildcards));
  if (wildcard == path.npos) return path;
  const size_t slash = path.rfind('/', wildcard);
  const size_t start = slash == path.npos ? 0 : slash + 1;
  for (const absl::string_view component : absl::StrSplit(path.substr(start), '/')) {
    if (CanLeaveItsFolder(component)) return std::nullopt;
  }
  return start == 0 ? "." : path.substr(0, start);
}

// Gets the field and the path of every file that a spec names.
using PathVisit = absl::FunctionRef<void(const std::string& field, std::string& path)>;

// `data_field` is the path of `data` in the spec.
void VisitPaths(v1::DataSpec& data, const std::string& data_field, PathVisit visit) {
  const auto visit_set = [&](absl::string_view field, std::string* path) {
    if (!path->empty()) visit(absl::StrCat(data_field, ".", field), *path);
  };
  switch (data.source_case()) {
    case v1::DataSpec::kText:
      return visit_set("text.path", data.mutable_text()->mutable_path());
    case v1::DataSpec::kIdx: {
      v1::IdxData& idx = *data.mutable_idx();
      visit_set("idx.images", idx.mutable_images());
      visit_set("idx.labels", idx.mutable_labels());
      visit_set("idx.eval_images", idx.mutable_eval_images());
      return visit_set("idx.eval_labels", idx.mutable_eval_labels());
    }
    case v1::DataSpec::kNpy:
      for (auto& [input, path] : *data.mutable_npy()->mutable_inputs()) {
        visit_set(absl::StrCat("npy.inputs.", input), &path);
      }
      return;
    case v1::DataSpec::kNpz:
      return visit_set("npz.path", data.mutable_npz()->mutable_path());
    case v1::DataSpec::kImages: {
      v1::ImagesData& images = *data.mutable_images();
      visit_set("images.path", images.mutable_path());
      visit_set("images.list", images.mutable_list());
      visit_set("images.eval_path", images.mutable_eval_path());
      return visit_set("images.eval_list", images.mutable_eval_list());
    }
    case v1::DataSpec::kTfrecord:
      visit_set("tfrecord.path", data.mutable_tfrecord()->mutable_path());
      return visit_set("tfrecord.eval_path", data.mutable_tfrecord()->mutable_eval_path());
    case v1::DataSpec::kTar:
      visit_set("tar.path", data.mutable_tar()->mutable_path());
      return visit_set("tar.eval_path", data.mutable_tar()->mutable_eval_path());
    case v1::DataSpec::kCsv:
      visit_set("csv.path", data.mutable_csv()->mutable_path());
      visit_set("csv.eval_path", data.mutable_csv()->mutable_eval_path());
      for (auto& [name, input] : *data.mutable_csv()->mutable_inputs()) {
        if (!input.has_vocabulary()) continue;
        visit_set(absl::StrCat("csv.inputs.", name, ".vocabulary.path"),
                  input.mutable_vocabulary()->mutable_path());
      }
      return;
    case v1::DataSpec::kMixture:
      for (int i = 0; i < data.mixture().parts_size(); ++i) {
        v1::MixturePart& part = *data.mutable_mixture()->mutable_parts(i);
        if (!part.has_data()) continue;
        VisitPaths(*part.mutable_data(), absl::StrCat(data_field, ".mixture.parts[", i, "].data"),
                   visit);
      }
      return;
    case v1::DataSpec::kLinear:
    case v1::DataSpec::kSynthetic:
    case v1::DataSpec::kExternal:
    case v1::DataSpec::SOURCE_NOT_SET:
      return;
  }
}

void VisitPaths(v1::DataSpec& data, PathVisit visit) { VisitPaths(data, "data", visit); }

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
  if (any()) return absl::OkStatus();
  RETURN_IF_ERROR(Check(path));
  std::error_code error;
  fs::directory_iterator file(path, error), end;
  for (int i = 0; !error && file != end && i < kEntriesChecked; file.increment(error), ++i) {
    RETURN_IF_ERROR(Check(file->path().string()));
  }
  return absl::OkStatus();
}

absl::Status PathRules::CheckPattern(const std::string& pattern) const {
  RETURN_IF_ERROR(CheckWithin(pattern));
  if (any()) return absl::OkStatus();
  if (const std::optional<std::string> fixed = FixedPart(pattern)) return Check(*fixed);
  return WithReason(absl::PermissionDeniedError(absl::StrCat(
                        "'", pattern,
                        "': from its first wildcard on, a pattern can have neither '..' nor a '/' "
                        "in braces, because jobs may read only some folders here (--data_roots)")),
                    "PATH_NOT_ALLOWED");
}

absl::Status PathRules::CheckData(const v1::DataSpec& data) const {
  for (const NamedPath& named : PathsOf(data)) {
    RETURN_IF_ERROR(AtField(CheckPattern(named.path), named.field));
  }
  return absl::OkStatus();
}

std::vector<FieldFault> PathRules::FaultsOf(const v1::JobSpec& spec) const {
  std::vector<FieldFault> faults;
  for (const NamedPath& named : PathsOf(spec)) {
    const bool is_data = absl::StartsWith(named.field, "data.");
    const absl::Status status = is_data ? CheckPattern(named.path) : CheckWithin(named.path);
    if (!status.ok()) faults.push_back({named.field, std::string(status.message())});
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
