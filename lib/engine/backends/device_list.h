// The devices of a worker, as --devices names them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// How many GPUs this process sees, > 0; UNAVAILABLE with the reason when it sees none (no driver,
// none installed, or a build without CUDA). Initialises the driver: a fraction of a second.
absl::StatusOr<int> CountGpus();

// The names of the devices for CreateDevice(): at least one, each once.
//
//   cpu          {"cpu:0"}
//   cpu:2        {"cpu:0", "cpu:1"}: two CPU devices; "cpu,cpu" likewise
//   cuda:all     every GPU that is visible
//   cuda:0,1     {"cuda:0", "cuda:1"}; "cuda:0,cuda:1" likewise; "cuda" is "cuda:0"
//
// INVALID_ARGUMENT says what to write instead: for anything else, for CPU and GPU devices together,
// for a GPU named twice or one beyond those visible. UNAVAILABLE with the cause and the remedy if
// GPUs are asked for and none is visible: a worker must not train on the CPU instead. `count_gpus`
// is called only if GPUs are asked for.
absl::StatusOr<std::vector<std::string>> ParseDeviceList(
    absl::string_view text, const std::function<absl::StatusOr<int>()>& count_gpus = CountGpus);

}  // namespace muster
