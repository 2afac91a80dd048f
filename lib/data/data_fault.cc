#include "lib/data/data_fault.h"

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/file/beneath.h"
#include "lib/file/regular_file.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kTries = 3;

}  // namespace

bool IsStorageFault(int error_number) {
  switch (error_number) {
    case 0:
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
    case ENXIO:  // a socket
    case EXDEV:  // beneath none of the data roots
      return false;
    default:
      return true;
  }
}

int TryThreeTimes(absl::FunctionRef<int()> attempt) {
  int error_number = attempt();
  for (int tries = 1; tries < kTries && IsStorageFault(error_number); ++tries) {
    error_number = attempt();
  }
  return error_number;
}

absl::Status DataPathFault(absl::string_view field, absl::string_view path, int error_number) {
  const std::string fault = PathFault(std::string(path), error_number);
  if (IsStorageFault(error_number)) {
    return AtField(WithReason(absl::UnavailableError(fault), "DATA_UNREADABLE"), field);
  }
  if (error_number == EACCES || error_number == EPERM) {
    return AtField(WithReason(absl::PermissionDeniedError(fault), "DATA_FORBIDDEN"), field);
  }
  return AtField(WithReason(absl::NotFoundError(fault), "DATA_NOT_FOUND"), field);
}

absl::StatusOr<int> OpenDataFile(const std::string& path, absl::string_view field) {
  OpenedFile file;
  TryThreeTimes([&] {
    file = OpenRegularDataFile(path);
    return file.error_number;
  });
  if (file.descriptor >= 0) return file.descriptor;
  if (file.error_number == EXDEV) {
    return AtField(WithReason(absl::PermissionDeniedError(absl::StrCat(
                                  path,
                                  ": lies in none of the folders that jobs may read here "
                                  "(--data_roots), or is a link that leads out of them")),
                              "PATH_NOT_ALLOWED"),
                   field);
  }
  if (file.error_number != 0) return DataPathFault(field, path, file.error_number);
  return DataInvalid(field, absl::StrCat(path, ": is not a regular file"));
}

absl::Status DataDamaged(absl::string_view field, absl::string_view path, int64_t record,
                         int64_t offset, absl::string_view message) {
  const std::string number = record < 0 ? "" : absl::StrCat("record ", record, " ");
  return AtField(WithReason(absl::DataLossError(absl::StrCat(path, ": ", number, "at byte ", offset,
                                                             ": ", message)),
                            "DATA_DAMAGED"),
                 field);
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
