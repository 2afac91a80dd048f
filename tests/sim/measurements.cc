#include "tests/sim/measurements.h"

#include <fstream>
#include <map>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster {

absl::StatusOr<Measurements> ReadMeasurements(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  Measurements all;
  const std::map<std::string, double*> values = {
      {"payload_share", &all.payload_share},
      {"latency_seconds", &all.latency_seconds},
      {"sum_bytes_per_second", &all.sum_bytes_per_second},
      {"apply_bytes_per_second", &all.apply_bytes_per_second},
      {"compute_seconds", &all.compute_seconds},
      {"cores", &all.cores},
      {"model_bytes", &all.model_bytes},
      {"chunk_bytes", &all.chunk_bytes}};
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name;
    if (!(words >> name)) continue;
    bool good = false;
    if (name == "step") {
      MeasuredStep& step = all.steps.emplace_back();
      good = (words >> step.mode >> step.bits_per_second >> step.workers >> step.separate >>
              step.seconds) &&
             step.bits_per_second > 0 && step.workers > 0 && step.separate >= 0 && step.seconds > 0;
    } else if (const auto value = values.find(name); value != values.end()) {
      good = (words >> *value->second) && *value->second > 0;
    }
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": cannot be understood: ", line));
    }
  }
  for (const auto& [name, value] : values) {
    if (*value <= 0) return absl::InvalidArgumentError(absl::StrCat(path, ": no ", name));
  }
  return all;
}

}  // namespace muster
