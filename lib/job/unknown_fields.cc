#include "lib/job/unknown_fields.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"

namespace muster {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownFieldSet;

void Check(const Message& message, const std::string& path, FieldChecks& faults) {
  const Reflection& reflection = *message.GetReflection();
  const UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    std::set<int> numbers;
    for (int i = 0; i < unknown.field_count(); ++i) numbers.insert(unknown.field(i).number());
    faults.Add(path.empty() ? "spec" : path,
               absl::StrCat("has ", numbers.size() == 1 ? "field number " : "field numbers ",
                            absl::StrJoin(numbers, ", "),
                            ", which this coordinator does not know: is the client newer? "
                            "Update the coordinator, or leave the setting out"));
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string name = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    if (!field->is_repeated()) {
      Check(reflection.GetMessage(message, field), name, faults);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      Check(reflection.GetRepeatedMessage(message, field, i), absl::StrCat(name, "[", i, "]"),
            faults);
    }
  }
}

}  // namespace

void CheckUnknownFields(const v1::JobSpec& spec, FieldChecks& faults) { Check(spec, "", faults); }

}  // namespace muster
