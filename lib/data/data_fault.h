// What can be wrong with data, in one form: a reason, and the field at fault (see FaultsOf()),
// whose path begins the message.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// "data.text.path: /nope: no such file or directory", from errno; a relative path that is not there
// is followed by the folder that it is relative to. Reason DATA_NOT_FOUND.
absl::Status DataNotFound(absl::string_view field, absl::string_view path, int error_number);

// The descriptor of a regular file, to read, the caller's to close; else one of these.
absl::StatusOr<int> OpenDataFile(const std::string& path, absl::string_view field);

absl::Status DataTruncated(absl::string_view field, absl::string_view message);
absl::Status DataInvalid(absl::string_view field, absl::string_view message);
absl::Status DataTooSmall(absl::string_view field, absl::string_view message);

// RESOURCE_EXHAUSTED: `path` takes more memory than is left of what the data may hold.
absl::Status DataTooLarge(absl::string_view field, absl::string_view path, int64_t bytes_left);

// The graph's input of that name, or nullptr.
const v1::GraphInput* FindInput(const v1::Graph& graph, absl::string_view name);

// Whether the graph has an input of that name with exactly this type.
bool HasInput(const v1::Graph& graph, absl::string_view name, v1::DType dtype,
              absl::Span<const int64_t> shape);

// "f32[-1, 1, 28, 28]", or "missing".
std::string DescribeInput(const v1::Graph& graph, absl::string_view name);

}  // namespace muster
