#include "lib/data/data_fault.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/file/regular_file.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {

absl::Status DataNotFound(absl::string_view field, absl::string_view path, int error_number) {
  std::string why = std::generic_category().message(error_number);
  if (!why.empty()) why[0] = absl::ascii_tolower(why[0]);
  if (error_number == ENOENT && std::filesystem::path(std::string(path)).is_relative()) {
    std::error_code error;
    absl::StrAppend(&why, " in ", std::filesystem::current_path(error).native());
  }
  return AtField(WithReason(absl::NotFoundError(absl::StrCat(path, ": ", why)), "DATA_NOT_FOUND"),
                 field);
}

absl::StatusOr<int> OpenDataFile(const std::string& path, absl::string_view field) {
  const OpenedFile file = OpenRegularFile(path);
  if (file.descriptor >= 0) return file.descriptor;
  if (file.error_number != 0) return DataNotFound(field, path, file.error_number);
  return DataInvalid(field, absl::StrCat(path, ": is no regular file"));
}

absl::Status DataTruncated(absl::string_view field, absl::string_view message) {
  return AtField(WithReason(absl::DataLossError(message), "DATA_TRUNCATED"), field);
}

absl::Status DataInvalid(absl::string_view field, absl::string_view message) {
  return AtField(WithReason(absl::InvalidArgumentError(message), "DATA_INVALID"), field);
}

absl::Status DataTooSmall(absl::string_view field, absl::string_view message) {
  return AtField(WithReason(absl::InvalidArgumentError(message), "DATA_TOO_SMALL"), field);
}

absl::Status DataTooLarge(absl::string_view field, absl::string_view path, int64_t bytes_left) {
  return AtField(absl::ResourceExhaustedError(absl::StrCat(path, ": takes more than the ",
                                                           bytes_left, " bytes that it may")),
                 field);
}

const v1::GraphInput* FindInput(const v1::Graph& graph, absl::string_view name) {
  for (const v1::GraphInput& input : graph.inputs()) {
    if (input.name() == name) return &input;
  }
  return nullptr;
}

bool HasInput(const v1::Graph& graph, absl::string_view name, v1::DType dtype,
              absl::Span<const int64_t> shape) {
  const v1::GraphInput* input = FindInput(graph, name);
  return input != nullptr && input->dtype() == dtype &&
         std::equal(shape.begin(), shape.end(), input->shape().begin(), input->shape().end());
}

std::string DescribeInput(const v1::Graph& graph, absl::string_view name) {
  const v1::GraphInput* input = FindInput(graph, name);
  if (input == nullptr) return "missing";
  return absl::StrCat(input->dtype() == v1::DTYPE_I32 ? "i32[" : "f32[",
                      absl::StrJoin(input->shape(), ", "), "]");
}

}  // namespace muster
