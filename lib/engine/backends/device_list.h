// The devices of a worker, as --devices names them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Returns the number of GPUs that this process sees, > 0. Returns UNAVAILABLE with the reason if it
// sees none (no driver, none installed, or a build without CUDA). Initialises the driver, which
// takes a fraction of a second.
absl::StatusOr<int> CountGpus();

// Returns the names of the devices for CreateDevice(): at least one, each once.
//
//   cpu          {"cpu:0"}
//   cpu:2        {"cpu:0", "cpu:1"}: two CPU devices; the same as "cpu,cpu"
//   cuda:all     every GPU that is visible
//   cuda:0,1     {"cuda:0", "cuda:1"}; the same as "cuda:0,cuda:1"; "cuda" is "cuda:0"
//
// Returns INVALID_ARGUMENT, saying what to write instead, for any other text. That includes CPU and
// GPU devices together, a GPU named twice, and a GPU beyond those visible. Returns UNAVAILABLE with
// the cause and the remedy if GPUs are requested and none is visible: a worker must not train on
// the CPU instead. Calls `count_gpus` only if GPUs are requested.
absl::StatusOr<std::vector<std::string>> ParseDeviceList(
    absl::string_view text, const std::function<absl::StatusOr<int>()>& count_gpus = CountGpus);

}  // namespace muster
