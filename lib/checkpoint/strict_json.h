// JSON from outside: no duplicate keys, no deep nesting, no more than it is worth, no exceptions.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace muster {

// INVALID_ARGUMENT: "duplicate key 'w1'", "not JSON at byte 17" (counted from 1), or more values
// than a text of ours has, which would take many times its size.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text);

// The value where it is an integer in [0, 2^63), nothing otherwise.
std::optional<int64_t> NonNegativeInteger(const nlohmann::json& value);

}  // namespace muster
