// Adds a machine-readable reason to absl::Status, and defines the two macros that return errors.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Returns `status` with an UPPER_SNAKE reason ("DATA_NOT_FOUND"). Users search for this token; it
// is also google.rpc.ErrorInfo.reason, and docs/operations/reasons.md explains it. `status` must
// not be OK.
absl::Status WithReason(absl::Status status, absl::string_view reason);

// Returns the reason, or the canonical code's name ("INVALID_ARGUMENT") if none is attached. "" for
// OK.
std::string ReasonOf(const absl::Status& status);

// Returns `status` with `context` and ": " before the message. Code, payloads and reason stay. OK
// stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace muster

#define MUSTER_CONCAT_INNER_(a, b) a##b
#define MUSTER_CONCAT_(a, b) MUSTER_CONCAT_INNER_(a, b)

#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

#define ASSIGN_OR_RETURN(declaration, expression) \
  MUSTER_ASSIGN_OR_RETURN_(MUSTER_CONCAT_(status_or_, __LINE__), declaration, expression)
#define MUSTER_ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) return std::move(result).status();            \
  declaration = *std::move(result)
