#include "lib/job/spec_names.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace muster {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;

// Returns the prefix that all values of the enum except UNSPECIFIED share: "COMPRESSION_", or "".
absl::string_view CommonPrefix(const EnumDescriptor& type) {
  std::optional<absl::string_view> common;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() == 0) continue;
    const absl::string_view name = type.value(i)->name();
    if (!common.has_value()) common = name;
    size_t same = 0;
    while (same < std::min(common->size(), name.size()) && (*common)[same] == name[same]) ++same;
    common = common->substr(0, same);
  }
  const size_t end = common.value_or("").rfind('_');
  return end == absl::string_view::npos ? "" : common->substr(0, end + 1);
}

}  // namespace

std::string EnumName(const EnumValueDescriptor& value) {
  const size_t prefix = CommonPrefix(*value.type()).size();
  return absl::AsciiStrToLower(absl::string_view(value.name()).substr(prefix));
}

std::map<std::string, int> EnumNames(const EnumDescriptor& type) {
  std::map<std::string, int> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names[EnumName(*type.value(i))] = type.value(i)->number();
  }
  return names;
}

const FieldDescriptor* KindField(const Descriptor& type) {
  const FieldDescriptor* kind = type.FindFieldByName("kind");
  return kind != nullptr && kind->cpp_type() == FieldDescriptor::CPPTYPE_ENUM ? kind : nullptr;
}

}  // namespace muster
