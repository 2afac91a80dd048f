#include "lib/checkpoint/strict_json.h"

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int kDepthMax = 64;  // a job spec is about ten levels deep
// Each value takes up to 100 bytes of memory but as little as one byte of text. The header of a
// file with the maximum of parameters and all their slots has two million values.
constexpr int kValuesMax = 4'000'000;

}  // namespace

absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text) {
  std::vector<std::set<std::string>> keys;  // of the open objects
  std::string fault;
  int values = 0;  // values and keys so far
  auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kDepthMax) fault = absl::StrCat("nested deeper than ", kDepthMax);
    const bool ends = event == Event::object_end || event == Event::array_end;
    if (!ends && ++values > kValuesMax) {
      fault = absl::StrCat("more than ", kValuesMax, " values and keys");
    }
    if (!fault.empty()) return false;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) {
      fault = absl::StrCat("duplicate key '", value.get<std::string>(), "'");
    }
    return fault.empty();
  };
  try {
    nlohmann::json parsed = nlohmann::json::parse(text.begin(), text.end(), watch);
    if (!fault.empty()) return absl::InvalidArgumentError(fault);
    return parsed;
  } catch (const nlohmann::json::parse_error& error) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON at byte ", error.byte));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

std::optional<int64_t> NonNegativeInteger(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const uint64_t number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace muster
