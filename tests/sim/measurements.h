// Values measured on a real machine and network: constants for the simulation, and step times that
// the simulation must reproduce.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct MeasuredStep {
  std::string mode;            // "separate", "colocated", "allreduce"
  double bits_per_second = 0;  // of each network card
  int workers = 0;
  int separate = 0;  // ps on their own hosts
  double seconds = 0;
};

struct Measurements {
  double payload_share = 0;    // share of a card's bits that is payload
  double latency_seconds = 0;  // from one process to another
  double sum_bytes_per_second = 0;
  double apply_bytes_per_second = 0;
  double compute_seconds = 0;  // of one step that has a core for itself
  double cores = 0;            // shared by all members
  double model_bytes = 0;
  double chunk_bytes = 0;
  std::vector<MeasuredStep> steps;
};

// Reads a file of lines "NAME VALUE" or "step MODE BITS_PER_SECOND WORKERS SEPARATE SECONDS"; #
// begins a comment. Every value must be present and > 0 (separate: >= 0). Returns NOT_FOUND if the
// file cannot be read. Returns INVALID_ARGUMENT if a line is invalid (the error names file and
// line) or if a value is missing (the error names file and value).
absl::StatusOr<Measurements> ReadMeasurements(const std::string& path);

}  // namespace muster
