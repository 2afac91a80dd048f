// Fuzzes job files, the text that users submit, and their validation in the coordinator.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "glog/logging.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/status/field_fault.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {

bool FuzzOne(absl::string_view bytes) {
  const std::string text(bytes);
  auto spec = ParseJobFile(text, "job.yaml");
  if (!spec.ok()) {
    CHECK(absl::IsInvalidArgument(spec.status())) << spec.status();
    CHECK(absl::StrContains(spec.status().message(), "job.yaml")) << spec.status();
    return false;
  }
  const auto again = ParseJobFile(ToYaml(*spec), "again.yaml");
  CHECK(again.ok()) << again.status() << "\n" << ToYaml(*spec);
  CHECK_EQ(ToYaml(*again), ToYaml(*spec));
  const std::vector<FieldFault> faults = ValidateJobSpec(*spec);
  for (const FieldFault& fault : faults) {
    CHECK(!fault.field.empty()) << fault.description;
    CHECK(!fault.description.empty()) << fault.field;
  }
  if (!faults.empty()) {
    const absl::Status located = LocateFaults(FaultsToStatus(faults), text, "job.yaml");
    CHECK(absl::IsInvalidArgument(located)) << located;
    return false;
  }
  FillDefaults(*spec);
  CHECK(ValidateJobSpec(*spec).empty()) << spec->DebugString();
  return true;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator("examples")) {
    if (entry.path().extension() != ".yaml") continue;
    std::ifstream file(entry.path());
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::ranges::sort(seeds);  // independent of the order in the folder
  return seeds;
}

int FuzzTestInputs() { return 10'000; }

}  // namespace muster
