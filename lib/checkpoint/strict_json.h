// Parses JSON from outside: refuses duplicate keys, deep nesting and too many values. Throws no
// exceptions.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace muster {

// Returns INVALID_ARGUMENT for "duplicate key 'w1'", for "not JSON at byte 17" (counted from 1), or
// for more values than any text of ours has. Such a text would need memory of many times its size.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text);

// Returns the value if it is an integer in [0, 2^63), else nullopt.
std::optional<int64_t> NonNegativeInteger(const nlohmann::json& value);

}  // namespace muster
