#include "cli/local/job_check.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/admission/spec_check.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

constexpr int64_t kFileBytesMax = 1 << 20;  // ParseJobFile's own bound; here so that it is not read

}  // namespace

absl::StatusOr<std::string> ReadJobFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", error ? error.message() : "not a file"));
  }
  if (std::filesystem::file_size(path, error) > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a job file may have at most ", kFileBytesMax, " bytes"));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot read"));
  return text.str();
}

absl::StatusOr<JobOverrides> ParseOverrides(const std::vector<std::string>& settings) {
  JobOverrides overrides;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--set ", setting, ": expects FIELD=VALUE, for example --set training.steps=500"));
    }
    overrides.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return overrides;
}

absl::StatusOr<CheckedJob> CheckJobFile(const std::string& text, const std::string& file,
                                        const JobOverrides& overrides) {
  CheckedJob checked;
  ASSIGN_OR_RETURN(checked.spec, ParseJobFile(text, file, overrides));
  absl::StatusOr<SpecCheck> found = CheckSpec(checked.spec, {});
  if (!found.ok()) return LocateFaults(found.status(), text, file, overrides);
  checked.warnings = std::move(found->warnings);
  return checked;
}

}  // namespace muster::cli
