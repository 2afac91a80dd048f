// The sizes that the recurrent kernels share.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct RecurrentShape {
  int64_t batch;         // B
  int64_t time;          // T
  int64_t inputs;        // I
  int64_t hidden;        // H
  int64_t directions;    // D: 1, or 2 (forward and backward side by side)
  bool reverse = false;  // only if D == 1: from the last time step to the first
};

}  // namespace muster::kernels
