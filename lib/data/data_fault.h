// Errors about data, all of one form: a reason (except DataTooLarge()), and the field at fault (see
// FaultsOf()). The field's path begins the message.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns whether the error of a system call is one of the storage or of this process, such as EIO,
// ESTALE or EMFILE: the path may be right, so another attempt may succeed.
bool IsStorageFault(int error_number);

// Calls `attempt`, which returns 0 or an error number, up to three times while it returns a storage
// fault. Returns the last number.
int TryThreeTimes(absl::FunctionRef<int()> attempt);

// Returns "data.text.path: /nope: no such file or directory on node-3": the field, then
// PathFault(). It is NOT_FOUND with the reason DATA_NOT_FOUND, UNAVAILABLE with the reason
// DATA_UNREADABLE for a storage fault, or PERMISSION_DENIED with the reason DATA_FORBIDDEN.
absl::Status DataPathFault(absl::string_view field, absl::string_view path, int error_number);

// Opens a regular file for reading. Tries a storage fault three times. Returns its descriptor,
// which the caller must close, or one of the errors here. Returns PERMISSION_DENIED (reason
// "PATH_NOT_ALLOWED") if the file lies beneath none of the process's data roots (SetDataRoots()).
absl::StatusOr<int> OpenDataFile(const std::string& path, absl::string_view field);

// Returns DATA_LOSS, reason "DATA_DAMAGED", for a record with bytes that its format forbids:
// "data.tfrecord.path: /data/a.tfrecord: record 12 at byte 3456: the checksum differs".
// `record` < 0: the format has no numbers.
absl::Status DataDamaged(absl::string_view field, absl::string_view path, int64_t record,
                         int64_t offset, absl::string_view message);

absl::Status DataTruncated(absl::string_view field, absl::string_view message);
absl::Status DataInvalid(absl::string_view field, absl::string_view message);
absl::Status DataTooSmall(absl::string_view field, absl::string_view message);

// Returns RESOURCE_EXHAUSTED: `path` needs more memory than the data may still use.
absl::Status DataTooLarge(absl::string_view field, absl::string_view path, int64_t bytes_left);

// Returns the graph's input of that name, or nullptr.
const v1::GraphInput* FindInput(const v1::Graph& graph, absl::string_view name);

// Returns whether the graph has an input of that name with exactly this type.
bool HasInput(const v1::Graph& graph, absl::string_view name, v1::DType dtype,
              absl::Span<const int64_t> shape);

// Returns "f32[-1, 1, 28, 28]", or "missing".
std::string DescribeInput(const v1::Graph& graph, absl::string_view name);

}  // namespace muster
