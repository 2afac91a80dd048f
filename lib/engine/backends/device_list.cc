#include "lib/engine/backends/device_list.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/engine/cuda/cuda_backend.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kDevicesMax = 64;  // each device has its own threads

absl::Status NoList(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text,
      "' is not a list of devices: write cuda:all, cuda:0,1, cpu, cpu:N for N CPU devices, "
      "or cpu,cpu"));
}

absl::Status TooMany(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' are more than ", kDevicesMax, " devices"));
}

absl::StatusOr<std::vector<std::string>> CpuDevices(absl::string_view text) {
  int count = 0;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int of_part = 1;
    if (absl::ConsumePrefix(&part, "cpu:")) {
      if (!absl::SimpleAtoi(part, &of_part) || of_part < 1) return NoList(text);
    } else if (part != "cpu") {
      return NoList(text);
    }
    count += std::min(of_part, kDevicesMax + 1);
    if (count > kDevicesMax) return TooMany(text);
  }
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat("cpu:", i));
  return names;
}

// Returns the numbers of the GPUs that `text` names; empty means all.
absl::StatusOr<std::vector<int>> GpuNumbers(absl::string_view text) {
  std::vector<int> numbers;
  if (text == "cuda:all") return numbers;
  if (text == "cuda") return std::vector<int>{0};
  bool is_first = true;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const bool is_named = absl::ConsumePrefix(&part, "cuda:");
    int number;
    if ((is_first && !is_named) || !absl::SimpleAtoi(part, &number) || number < 0) {
      return NoList(text);
    }
    is_first = false;
    if (std::ranges::count(numbers, number) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' names GPU ", number, " twice: write each once"));
    }
    numbers.push_back(number);
    if (numbers.size() > kDevicesMax) return TooMany(text);
  }
  return numbers;
}

}  // namespace

absl::StatusOr<int> CountGpus() { return CountCudaDevices(); }

absl::StatusOr<std::vector<std::string>> ParseDeviceList(
    absl::string_view text, const std::function<absl::StatusOr<int>()>& count_gpus) {
  if (!absl::StartsWith(text, "cuda")) return CpuDevices(text);
  ASSIGN_OR_RETURN(std::vector<int> numbers, GpuNumbers(text));
  const absl::StatusOr<int> visible = count_gpus();
  if (absl::IsUnavailable(visible.status())) {
    return absl::UnavailableError(absl::StrCat(
        "'", text, "' asks for a GPU, but ", visible.status().message(),
        ". Make one visible (nvidia-smi lists them, CUDA_VISIBLE_DEVICES may hide them; 'muster "
        "doctor' examines the host), use a build with CUDA, or compute on the CPU with cpu"));
  }
  RETURN_IF_ERROR(visible.status());
  if (numbers.empty()) {
    for (int i = 0; i < *visible; ++i) numbers.push_back(i);
  }
  std::vector<std::string> names;
  for (int number : numbers) {
    if (number >= *visible) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", text, "' names GPU ", number, ", but ", *visible, *visible == 1 ? " is" : " are",
          " visible: write cuda:all, or numbers below ", *visible));
    }
    names.push_back(absl::StrCat("cuda:", number));
  }
  return names;
}

}  // namespace muster
