// What was measured on a real machine and network: constants for the simulation, and steps that it
// is to reproduce.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster {

struct MeasuredStep {
  std::string mode;            // "separate", "colocated", "allreduce"
  double bits_per_second = 0;  // of each card
  int workers = 0;
  int separate = 0;  // ps on hosts of their own
  double seconds = 0;
};

struct Measurements {
  double payload_share = 0;    // of a card's bits
  double latency_seconds = 0;  // from a process to another
  double sum_bytes_per_second = 0;
  double apply_bytes_per_second = 0;
  double compute_seconds = 0;  // of a step, alone on a core
  double cores = 0;            // that all members share
  double model_bytes = 0;
  double chunk_bytes = 0;
  std::vector<MeasuredStep> steps;
};

// A line is "NAME VALUE", or "step MODE BITS_PER_SECOND WORKERS SEPARATE SECONDS"; # begins a
// comment. INVALID_ARGUMENT names file and line; every value must be there and > 0 (separate: >=
// 0).
absl::StatusOr<Measurements> ReadMeasurements(const std::string& path);

}  // namespace muster
