#include "lib/job/job_file.h"

#include "lib/job/spec_reader.h"
#include "lib/job/spec_writer.h"
#include "lib/job/yaml/located_fault.h"
#include "lib/job/yaml/yaml_tree.h"
#include "lib/status/field_fault.h"

namespace muster {

absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file,
                                         const JobOverrides& overrides) {
  YamlValue root;
  if (auto fault = ReadYamlTree(text, file, overrides, root)) {
    return LocatedFaultsToStatus({*fault});
  }
  v1::JobSpec spec;
  const std::vector<LocatedFault> faults = ReadSpec(root, spec);
  if (!faults.empty()) return LocatedFaultsToStatus(faults);
  return spec;
}

absl::Status LocateFaults(const absl::Status& status, const std::string& text,
                          const std::string& file, const JobOverrides& overrides) {
  const std::vector<FieldFault> faults = FaultsOf(status);
  YamlValue root;
  if (faults.empty() || ReadYamlTree(text, file, overrides, root)) return status;
  std::vector<LocatedFault> located;
  for (const FieldFault& fault : faults) located.push_back({PlaceOf(root, fault.field), fault});
  return LocatedFaultsToStatus(located);
}

std::string ToYaml(const v1::JobSpec& spec) { return WriteSpec(spec); }

}  // namespace muster
