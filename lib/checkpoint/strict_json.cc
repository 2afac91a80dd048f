#include "lib/checkpoint/strict_json.h"

#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr size_t kDepthMax = 64;  // a job spec is about ten levels deep
// Each value takes up to 100 bytes of memory but as little as one byte of text. The header of a
// file with the maximum of parameters and all their slots has two million values.
constexpr int kValuesMax = 4'000'000;

using Json = nlohmann::json;

// Builds the value from the parser's events. The library's own parser with a callback looks through
// all members of an object at the end of each: a header of 65,536 tensors would take a minute.
class StrictReader final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value) != nullptr;
  }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("not JSON"); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (!Count()) return false;
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().emplace(name, nullptr);
    if (!is_new) return Fail(absl::StrCat("duplicate key '", name, "'"));
    member_ = &member->second;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const bool is_syntax = dynamic_cast<const Json::parse_error*>(&error) != nullptr;
    return Fail(is_syntax ? absl::StrCat("not JSON at byte ", position) : error.what());
  }

  const std::string& fault() const { return fault_; }
  Json Take() && { return std::move(root_); }

 private:
  bool Fail(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }

  bool Count() {
    return ++values_ <= kValuesMax ||
           Fail(absl::StrCat("more than ", kValuesMax, " values and keys"));
  }

  // Returns the value's place; null after a fault.
  Json* Add(Json value) {
    if (!Count()) return nullptr;
    Json* place = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      place = &open_.back()->emplace_back();
    } else if (!open_.empty()) {
      place = member_;
    }
    *place = std::move(value);
    return place;
  }

  bool Open(Json value) {
    if (open_.size() >= kDepthMax) return Fail(absl::StrCat("nested deeper than ", kDepthMax));
    Json* const place = Add(std::move(value));
    if (place != nullptr) open_.push_back(place);
    return place != nullptr;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // from the root to the innermost; they grow only at their ends
  Json* member_ = nullptr;   // of the innermost object, whose value comes next
  int values_ = 0;           // values and keys so far
  std::string fault_;
};

}  // namespace

absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text) {
  StrictReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::InvalidArgumentError(reader.fault());
  }
  return std::move(reader).Take();
}

std::optional<int64_t> NonNegativeInteger(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const uint64_t number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace muster
