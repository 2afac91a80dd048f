// The sentences about what bounds the reading of samples. `muster top`, the status page and `muster
// bench data` show them.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// A stage of reading a sample, with the seconds that a sample spends in it.
struct InputStageCost {
  absl::string_view stage;  // "open", "read", "decode", "resample", "augment"
  double seconds = 0;
};

// Returns what was read after `before`.
v1::InputTiming Since(const v1::InputTiming& before, const v1::InputTiming& after);

// Returns the stages in their order. Empty if no sample was read.
std::vector<InputStageCost> InputStageCosts(const v1::InputTiming& timing);

// Returns the samples per second that the threads read if they never wait for room. 0: unknown.
double InputCapacity(const v1::InputTiming& timing);

// Returns the stage that takes the most time, the arithmetic and a remedy: "decode takes 71 %
// of 9.4 ms a sample on 2 threads; 5 threads would keep up. More cores ... help". The worker would
// train `wanted` samples a second if it never waited for them. Names no number of threads if they
// wait for storage. Empty if no stage was timed.
std::string InputVerdict(const v1::InputTiming& timing, double wanted);

}  // namespace muster
