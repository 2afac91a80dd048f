// The sentences about what bounds the steps of a job. `muster top` and the status page show them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// The mean step of one worker. Times are in seconds, bytes and samples are per step.
struct StepCost {
  std::string worker;
  double step = 0, data = 0, compute = 0, wait = 0;
  double forward = 0, backward = 0;  // parts of `compute`; 0 if the worker cannot tell them apart
  double tensor_parallel = 0;        // part of `compute`; see StepTiming
  double sent_bytes = 0, received_bytes = 0, samples = 0, samples_per_second = 0;
  v1::InputTiming input;  // over all steps; no samples if the worker does not tell
  int64_t steps = 0;      // number of steps that the mean covers

  double own() const { return data + compute; }  // time that no other member can shorten
  // The samples per second that the worker would train if it never waited for a batch.
  double wanted() const { return samples_per_second * step / std::max(step - data, 1e-9); }
};

// Returns the workers that finished a step, in the order of `timing`.
std::vector<StepCost> StepCosts(const v1::ReadJobTimingResponse& timing);

// Returns one or two lines without line breaks, or none if `costs` is empty:
//   1. the worker that the others wait for, if there is one, because it is slow or has more samples
//   2. whether input, computing or communication bounds the job, with the arithmetic and a remedy
std::vector<std::string> StepVerdict(const std::vector<StepCost>& costs);

}  // namespace muster
