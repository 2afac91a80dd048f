#include "lib/data/source/tar_columns.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/data/data_fault.h"
#include "lib/data/format/npy.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

constexpr int64_t kJsonBytesMax = 16 << 20;

template <typename Number>
absl::Status PutNumber(const TarColumn& column, Number number, int64_t element, std::byte* row) {
  if (column.dtype == v1::DTYPE_I32) {
    if constexpr (std::is_integral_v<Number>) {
      const std::string fault = column.NumberFault(number);
      if (!fault.empty()) return absl::InvalidArgumentError(fault);
    }
    const auto value = static_cast<int32_t>(number);
    std::memcpy(row + element * sizeof(value), &value, sizeof(value));
  } else {
    const auto value = static_cast<float>(number);
    std::memcpy(row + element * sizeof(value), &value, sizeof(value));
  }
  return absl::OkStatus();
}

absl::Status PutInteger(const TarColumn& column, absl::string_view text, std::byte* row) {
  const std::optional<int64_t> number = TarIntegerOf(text);
  if (!number) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CHexEscape(text.substr(0, 40)), "' is no integer"));
  }
  return PutNumber(column, *number, 0, row);
}

template <typename Stored>
absl::Status PutElements(const TarColumn& column, const std::byte* from, std::byte* row) {
  for (int64_t i = 0; i < column.elements(); ++i) {
    Stored number;
    std::memcpy(&number, from + i * sizeof(Stored), sizeof(number));
    RETURN_IF_ERROR(PutNumber(column, number, i, row));
  }
  return absl::OkStatus();
}

absl::Status PutArray(const TarColumn& column, absl::Span<const std::byte> bytes, std::byte* row) {
  constexpr absl::string_view kPrefix = "npy: ";
  const auto header = ReadNpyHeader(bytes, "the array", "npy");
  if (!header.ok()) {
    return absl::InvalidArgumentError(absl::StripPrefix(header.status().message(), kPrefix));
  }
  // A number may be stored without dimensions, or with one of 1.
  const bool is_number = column.elements() == 1 && header->shape.size() <= 1 &&
                         (header->shape.empty() || header->shape[0] == 1);
  if (header->shape != column.shape && !is_number) {
    return absl::InvalidArgumentError(
        absl::StrCat("the array is [", absl::StrJoin(header->shape, ", "), "], the model's rows [",
                     absl::StrJoin(column.shape, ", "), "]"));
  }
  if (column.dtype == v1::DTYPE_I32 && !IsInteger(header->type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the array is ", NpyTypeName(header->type), ", but the model reads ids"));
  }
  const std::byte* from = bytes.data() + header->data_offset;
  switch (header->type) {
    case NpyType::kF32:
      return PutElements<float>(column, from, row);
    case NpyType::kF64:
      return PutElements<double>(column, from, row);
    case NpyType::kI32:
      return PutElements<int32_t>(column, from, row);
    case NpyType::kI64:
      return PutElements<int64_t>(column, from, row);
    case NpyType::kU8:
      return PutElements<uint8_t>(column, from, row);
  }
  return absl::OkStatus();
}

// Returns the type of a value, and the value if it has no parts: dump() recurses into parts, and
// deep ones overflow the stack.
std::string DescribeJson(const nlohmann::json& value) {
  if (value.is_structured()) return value.type_name();
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return absl::StrCat(value.type_name(), " ", text.substr(0, 40));
}

absl::Status PutJsonNumber(const TarColumn& column, const nlohmann::json& number, int64_t element,
                           std::byte* row) {
  if (number.is_number_unsigned()) {
    const uint64_t value = number.get<uint64_t>();
    const uint64_t limit = std::numeric_limits<int64_t>::max();
    return PutNumber(column, static_cast<int64_t>(std::min(value, limit)), element, row);
  }
  if (number.is_number_integer()) return PutNumber(column, number.get<int64_t>(), element, row);
  if (!number.is_number_float() || column.dtype == v1::DTYPE_I32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the field ", column.json_field, " has ", DescribeJson(number), " where the model reads ",
        column.dtype == v1::DTYPE_I32 ? "an id" : "a number"));
  }
  return PutNumber(column, number.get<double>(), element, row);
}

absl::Status PutJson(const TarColumn& column, absl::string_view text, std::byte* row) {
  if (std::ssize(text) > kJsonBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a JSON text of ", text.size(), " bytes; at most ", kJsonBytesMax, " are possible"));
  }
  const nlohmann::json whole = nlohmann::json::parse(text.begin(), text.end(), nullptr,
                                                     /*allow_exceptions=*/false);
  if (whole.is_discarded()) return absl::InvalidArgumentError("is no JSON text");
  const nlohmann::json* value = &whole;
  for (const absl::string_view name : absl::StrSplit(column.json_field, '.')) {
    const auto found = value->find(std::string(name));
    if (!value->is_object() || found == value->end()) {
      return absl::InvalidArgumentError(absl::StrCat("has no field ", column.json_field));
    }
    value = &*found;
  }
  if (!value->is_array()) {
    if (column.elements() == 1) return PutJsonNumber(column, *value, 0, row);
    return absl::InvalidArgumentError(absl::StrCat("the field ", column.json_field,
                                                   " is no list, the model's rows have ",
                                                   column.elements(), " numbers"));
  }
  if (std::ssize(*value) != column.elements()) {
    return absl::InvalidArgumentError(absl::StrCat("the field ", column.json_field, " has ",
                                                   value->size(), " numbers, the model's rows ",
                                                   column.elements()));
  }
  for (int64_t i = 0; i < column.elements(); ++i) {
    RETURN_IF_ERROR(PutJsonNumber(column, (*value)[i], i, row));
  }
  return absl::OkStatus();
}

absl::StatusOr<TarColumn> ColumnOf(const v1::DataSpec& spec, const v1::GraphInput& input,
                                   const InputUse& use, const MakeImageRows& make_image_rows) {
  TarColumn column{.field = absl::StrCat("data.tar.inputs.", input.name())};
  const auto found = spec.tar().inputs().find(input.name());
  if (found == spec.tar().inputs().end()) {
    return DataInvalid(
        column.field,
        absl::StrCat("required: the extension of the members for the model's ", input.name()));
  }
  const v1::TarInput& tar = found->second;
  for (const absl::string_view extension : absl::StrSplit(tar.extension(), ';')) {
    const absl::string_view plain = absl::StripPrefix(absl::StripAsciiWhitespace(extension), ".");
    if (!plain.empty()) column.extensions.emplace_back(plain);
  }
  if (column.extensions.empty()) return DataInvalid(column.field + ".extension", "required");
  column.kind = tar.kind_case();
  column.json_field = tar.json().field();
  column.dtype = input.dtype();
  column.shape.assign(input.shape().begin() + std::min(1, input.shape_size()), input.shape().end());
  column.use = use;
  const auto unfit = [&](absl::string_view what) {
    return DataInvalid(column.field, absl::StrCat(what, ", but the model's ", input.name(), " is ",
                                                  input.dtype() == v1::DTYPE_I32 ? "i32[" : "f32[",
                                                  absl::StrJoin(input.shape(), ", "), "]"));
  };
  switch (column.kind) {
    case v1::TarInput::kImage: {
      if (column.dtype != v1::DTYPE_F32 || column.shape.size() != 3) {
        return unfit("an image fills f32[-1, channels, height, width]");
      }
      ASSIGN_OR_RETURN(column.images, make_image_rows(spec.image(), spec.seed(), column.shape[0],
                                                      column.shape[1], column.shape[2]));
      return column;
    }
    case v1::TarInput::kInteger:
      if (column.elements() != 1) return unfit("an integer fills one element");
      return column;
    case v1::TarInput::kJson:
      if (column.json_field.empty()) return DataInvalid(column.field + ".json.field", "required");
      return column;
    case v1::TarInput::kArray:
      return column;
    case v1::TarInput::KIND_NOT_SET:
      break;
  }
  return DataInvalid(column.field, "needs one of image, integer, array and json");
}

}  // namespace

std::string TarColumn::NumberFault(int64_t number) const {
  if (dtype != v1::DTYPE_I32) return "";
  if (use.Takes(number) && number >= std::numeric_limits<int32_t>::min() &&
      number <= std::numeric_limits<int32_t>::max()) {
    return "";
  }
  const std::string range = ToText(use);
  return absl::StrCat(number, " is not in the model's range, ",
                      range.empty() ? "that of int32" : range);
}

absl::Status TarColumn::PutLabel(int64_t label, std::byte* row) const {
  return PutNumber(*this, label, 0, row);
}

absl::Status TarColumn::Put(absl::Span<const std::byte> bytes, const SampleRef* ref,
                            std::byte* row) const {
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (images != nullptr) {
    const auto to = absl::MakeSpan(reinterpret_cast<uint8_t*>(row), row_bytes());
    return ref != nullptr ? images->Training(bytes, *ref, to) : images->Evaluation(bytes, to);
  }
  const StageScope scope(InputStage::kDecode);
  if (kind == v1::TarInput::kArray) return PutArray(*this, bytes, row);
  if (kind == v1::TarInput::kJson) return PutJson(*this, text, row);
  return PutInteger(*this, text, row);
}

absl::StatusOr<std::vector<TarColumn>> TarColumnsOf(const v1::DataSpec& spec,
                                                    const v1::Graph& graph,
                                                    const MakeImageRows& make_image_rows) {
  for (const auto& [name, input] : spec.tar().inputs()) {
    if (FindInput(graph, name) != nullptr) continue;
    std::vector<std::string> known;
    for (const v1::GraphInput& of_graph : graph.inputs()) known.push_back(of_graph.name());
    return DataInvalid(
        absl::StrCat("data.tar.inputs.", name),
        absl::StrCat("the model has no such input; it reads ", absl::StrJoin(known, ", ")));
  }
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  std::vector<TarColumn> columns;
  int labels = 0;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    ASSIGN_OR_RETURN(TarColumn column, ColumnOf(spec, graph.inputs(i), uses[i], make_image_rows));
    if (column.kind == v1::TarInput::kInteger) column.label = labels++;
    columns.push_back(std::move(column));
  }
  if (columns.empty()) return DataInvalid("data.tar", "the model reads no data");
  return columns;
}

std::optional<int64_t> TarIntegerOf(absl::string_view text) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return std::nullopt;
  return number;
}

}  // namespace muster
