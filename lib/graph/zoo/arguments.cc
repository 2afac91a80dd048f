#include "lib/graph/zoo/arguments.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster::zoo {

int64_t Arguments::Integer(const std::string& name, int64_t value_if_absent, int64_t max) {
  const google::protobuf::Value* value = Read(name);
  if (value == nullptr) return value_if_absent;
  return Checked(name, value->kind_case() == value->kNumberValue ? value->number_value() : NAN,
                 max);
}

std::vector<int64_t> Arguments::Integers(const std::string& name,
                                         std::vector<int64_t> value_if_absent) {
  const google::protobuf::Value* value = Read(name);
  if (value == nullptr) return value_if_absent;
  if (value->kind_case() != value->kStringValue) return {Integer(name, 0)};
  std::vector<int64_t> integers;
  if (value->string_value().empty()) return integers;
  for (absl::string_view item : absl::StrSplit(value->string_value(), ',')) {
    double number;
    integers.push_back(Checked(name, absl::SimpleAtod(item, &number) ? number : NAN, kWidthMax));
  }
  if (integers.size() > kLayersMax) {
    Refuse(name, absl::StrCat("has ", integers.size(), " layers, more than ", kLayersMax));
  }
  return integers;
}

double Arguments::Rate(const std::string& name, double value_if_absent) {
  const google::protobuf::Value* value = Read(name);
  if (value == nullptr) return value_if_absent;
  const double number = value->kind_case() == value->kNumberValue ? value->number_value() : NAN;
  if (number >= 0 && number < 1) return number;
  Refuse(name, absl::StrCat("must be a number from 0 to below 1",
                            std::isnan(number) ? "" : absl::StrCat(" (is ", number, ")")));
  return 0;
}

bool Arguments::Boolean(const std::string& name, bool value_if_absent) {
  const google::protobuf::Value* value = Read(name);
  if (value == nullptr) return value_if_absent;
  if (value->kind_case() != value->kBoolValue) Refuse(name, "must be true or false");
  return value->bool_value();
}

int Arguments::Choice(const std::string& name, const std::vector<std::string>& words) {
  const google::protobuf::Value* value = Read(name);
  if (value == nullptr) return 0;
  const auto word = std::ranges::find(words, value->string_value());
  if (word != words.end()) return word - words.begin();
  Refuse(name, absl::StrCat("must be one of ", absl::StrJoin(words, ", ")));
  return 0;
}

void Arguments::Refuse(absl::string_view name, absl::string_view fault) {
  faults_.push_back(absl::StrCat("model '", model_.name(), "': argument '", name, "' ", fault));
}

void Arguments::RequireDivides(absl::string_view name, int64_t value, absl::string_view whole_name,
                               int64_t whole) {
  if (whole % value == 0) return;
  Refuse(name, absl::StrCat("is ", value, ", which does not divide ", whole_name, " = ", whole));
}

absl::Status Arguments::Verify() {
  std::vector<std::string> unknown;
  for (const auto& [name, value] : model_.args().fields()) {
    if (!known_.contains(name)) unknown.push_back(name);
  }
  std::ranges::sort(unknown);
  for (const std::string& name : unknown) {
    Refuse(name, absl::StrCat("is unknown; there are ", absl::StrJoin(known_in_order_, ", ")));
  }
  return faults_.empty() ? absl::OkStatus()
                         : absl::InvalidArgumentError(absl::StrJoin(faults_, "; "));
}

const google::protobuf::Value* Arguments::Read(const std::string& name) {
  if (known_.insert(name).second) known_in_order_.push_back(name);
  auto field = model_.args().fields().find(name);
  return field == model_.args().fields().end() ? nullptr : &field->second;
}

int64_t Arguments::Checked(const std::string& name, double number, int64_t max) {
  if (number >= 1 && number <= max && number == std::floor(number)) return number;
  Refuse(name, absl::StrCat("must be an integer from 1 to ", max,
                            std::isnan(number) ? "" : absl::StrCat(" (is ", number, ")")));
  return 1;
}

}  // namespace muster::zoo
