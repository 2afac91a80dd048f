#include "lib/graph/model/external_model.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/checkpoint/strict_json.h"
#include "lib/graph/half.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// A statistic's contribution is its new value.
constexpr double kStatisticMomentum = 1;
constexpr int64_t kFloatBytes = sizeof(float);

using Names = absl::flat_hash_set<std::string>;

absl::Status Invalid(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// Returns the number of elements. It cannot overflow, because the bytes fit into a file.
int64_t ElementsOf(const TensorEntry& tensor) {
  return tensor.bytes / (tensor.dtype == "F32" ? 4 : 2);
}

absl::StatusOr<Names> StatisticsOf(const std::string& path, const SafetensorsHeader& header) {
  Names names;
  const auto found = header.metadata.find(kStatisticsKey);
  if (found == header.metadata.end()) return names;
  const auto list = ParseStrictJson(found->second);
  if (!list.ok() || !list->is_array()) {
    return Invalid(path, absl::StrCat("metadata '", kStatisticsKey,
                                      "' is not a JSON list of names: write [\"bn.running_mean\"]",
                                      list.ok() ? "" : ": ", list.status().message()));
  }
  Names tensors;
  for (const TensorEntry& tensor : header.tensors) tensors.insert(tensor.name);
  for (const auto& name : *list) {
    if (!name.is_string() || !tensors.contains(name.get<std::string>())) {
      return Invalid(path, absl::StrCat("metadata '", kStatisticsKey, "' has an entry ",
                                        names.size(), " that is the name of no tensor"));
    }
    names.insert(name.get<std::string>());
  }
  return names;
}

absl::Status CheckTensor(const std::string& path, const TensorEntry& tensor) {
  const auto fault = [&](const auto&... what) {
    const std::string name = tensor.name.substr(0, limits::kTensorNameBytesMax);
    return Invalid(path, absl::StrCat("tensor '", absl::CEscape(name), "' ", what...));
  };
  if (tensor.name.empty() || tensor.name.size() > limits::kTensorNameBytesMax) {
    return fault("has a name of ", tensor.name.size(), " bytes; 1 to ", limits::kTensorNameBytesMax,
                 " are possible");
  }
  if (std::ranges::any_of(tensor.name, absl::ascii_iscntrl)) {
    return fault("has a control character in its name; rename it");
  }
  if (tensor.dtype != "F32" && tensor.dtype != "F16" && tensor.dtype != "BF16") {
    return fault("is of type ", tensor.dtype,
                 "; parameters are F32, F16 or BF16: convert it, or leave it out of the file");
  }
  if (ElementsOf(tensor) == 0) return fault("has no elements; leave it out of the file");
  if (ElementsOf(tensor) > limits::kParameterElementsMax) {
    return fault("has ", ElementsOf(tensor), " elements; at most ", limits::kParameterElementsMax,
                 " are possible");
  }
  return absl::OkStatus();
}

// A sparse file of a few bytes on the disk can claim any amount of memory.
absl::Status CheckMemory(const std::string& path, const SafetensorsHeader& header) {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  int64_t elements = 0;
  for (const TensorEntry& tensor : header.tensors) elements += ElementsOf(tensor);
  if (elements <= memory / kFloatBytes) return absl::OkStatus();
  return Invalid(path, absl::StrCat("has ", elements, " elements of 4 bytes, this machine has ",
                                    memory, " bytes of memory"));
}

template <typename Element>
absl::Span<std::byte> BytesOf(std::vector<Element>& elements) {
  return {reinterpret_cast<std::byte*>(elements.data()), elements.size() * sizeof(Element)};
}

absl::StatusOr<std::vector<float>> ReadValues(const DiskFile& file, const TensorEntry& tensor) {
  std::vector<float> values(ElementsOf(tensor));
  if (tensor.dtype == "F32") {
    RETURN_IF_ERROR(file.ReadAt(tensor.offset, BytesOf(values)));
    return values;
  }
  std::vector<uint16_t> narrow(values.size());
  RETURN_IF_ERROR(file.ReadAt(tensor.offset, BytesOf(narrow)));
  std::ranges::transform(narrow, values.begin(), tensor.dtype == "F16" ? FromHalf : FromBf16);
  return values;
}

}  // namespace

absl::StatusOr<ExternalParameters> ReadExternalModel(const v1::ExternalModel& model) {
  const std::string& path = model.path();
  ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadSafetensorsHeader(path));
  if (std::ssize(header.tensors) > limits::kParametersMax) {
    return Invalid(path, absl::StrCat("has ", header.tensors.size(), " tensors; at most ",
                                      limits::kParametersMax, " are possible"));
  }
  for (const TensorEntry& tensor : header.tensors) RETURN_IF_ERROR(CheckTensor(path, tensor));
  ASSIGN_OR_RETURN(const Names statistics, StatisticsOf(path, header));
  if (statistics.size() == header.tensors.size()) {
    return Invalid(path, header.tensors.empty()
                             ? "has no tensors: save the model's parameters in it"
                             : "has statistics only, nothing is left to train");
  }
  RETURN_IF_ERROR(CheckMemory(path, header));

  ExternalParameters parameters;
  parameters.graph.set_name("external");
  ASSIGN_OR_RETURN(const DiskFile file, DiskFile::OpenToRead(path));
  for (const TensorEntry& tensor : header.tensors) {
    v1::Parameter& parameter = *parameters.graph.add_parameters();
    parameter.set_name(tensor.name);
    parameter.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    if (statistics.contains(tensor.name)) {
      parameter.set_statistic_momentum(kStatisticMomentum);
    } else {
      parameter.set_weight_decay(true);
    }
    ASSIGN_OR_RETURN(parameters.initial_values.emplace_back(), ReadValues(file, tensor));
  }
  return parameters;
}

}  // namespace muster
