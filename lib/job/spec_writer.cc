#include "lib/job/spec_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/struct.pb.h"
#include "lib/job/spec_duration.h"
#include "lib/job/spec_names.h"
#include "lib/job/yaml/yaml_tree.h"
#include "yaml-cpp/yaml.h"

namespace muster {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Returns the fewest digits that read back as the same number.
std::string NumberText(double number) {
  if (number == std::floor(number) && std::abs(number) < 1e15) {
    return absl::StrFormat("%.0f", number);  // "-0" too
  }
  for (int digits = 6; digits < 17; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, number);
    double back = 0;
    if (absl::SimpleAtod(text, &back) && back == number) return text;
  }
  return absl::StrFormat("%.17g", number);
}

void EmitText(const std::string& text, YAML::Emitter& yaml) {
  const bool plain =
      !text.empty() && LooksLikeText(text) && (absl::ascii_isalpha(text[0]) || text[0] == '/') &&
      std::all_of(text.begin(), text.end(), [](char c) {
        return absl::ascii_isalnum(c) || c == '/' || c == '.' || c == '_' || c == '-';
      });
  if (!plain) yaml << YAML::DoubleQuoted;
  yaml << text;
}

void EmitStruct(const google::protobuf::Struct& fields, YAML::Emitter& yaml);

void EmitValue(const google::protobuf::Value& value, YAML::Emitter& yaml) {
  switch (value.kind_case()) {
    case google::protobuf::Value::kNumberValue:
      yaml << NumberText(value.number_value());
      return;
    case google::protobuf::Value::kBoolValue:
      yaml << value.bool_value();
      return;
    case google::protobuf::Value::kStringValue:
      EmitText(value.string_value(), yaml);
      return;
    case google::protobuf::Value::kStructValue:
      EmitStruct(value.struct_value(), yaml);
      return;
    case google::protobuf::Value::kListValue:
      yaml << YAML::Flow << YAML::BeginSeq;
      for (const google::protobuf::Value& item : value.list_value().values()) EmitValue(item, yaml);
      yaml << YAML::EndSeq;
      return;
    default:
      yaml << YAML::Null;
  }
}

void EmitStruct(const google::protobuf::Struct& fields, YAML::Emitter& yaml) {
  yaml << YAML::Flow << YAML::BeginMap;
  const std::map<std::string, google::protobuf::Value> sorted(fields.fields().begin(),
                                                              fields.fields().end());
  for (const auto& [key, value] : sorted) {
    yaml << YAML::Key;
    EmitText(key, yaml);
    yaml << YAML::Value;
    EmitValue(value, yaml);
  }
  yaml << YAML::EndMap;
}

void EmitField(const Message& message, const FieldDescriptor& field, YAML::Emitter& yaml);
void EmitMessage(const Message& message, YAML::Emitter& yaml);

// Writes a map of texts, sorted by key.
void EmitMap(const Message& message, const FieldDescriptor& field, YAML::Emitter& yaml) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::map<std::string, const Message*> entries;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    entries[entry.GetReflection()->GetString(entry, field.message_type()->map_key())] = &entry;
  }
  yaml << YAML::BeginMap;
  for (const auto& [key, entry] : entries) {
    yaml << YAML::Key;
    EmitText(key, yaml);
    yaml << YAML::Value;
    EmitField(*entry, *field.message_type()->map_value(), yaml);
  }
  yaml << YAML::EndMap;
}

// Returns the fewest digits that read back as the same float.
std::string FloatText(float number) {
  for (int digits = 6; digits < 9; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, number);
    double back = 0;
    if (absl::SimpleAtod(text, &back) && static_cast<float>(back) == number) return text;
  }
  return absl::StrFormat("%.9g", number);
}

// Writes a list of messages, texts or floats; the API has no other lists.
void EmitList(const Message& message, const FieldDescriptor& field, YAML::Emitter& yaml) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const bool texts = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  const bool floats = field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT;
  if (texts || floats) yaml << YAML::Flow;
  yaml << YAML::BeginSeq;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    if (texts) {
      EmitText(reflection.GetRepeatedString(message, &field, i), yaml);
    } else if (floats) {
      yaml << FloatText(reflection.GetRepeatedFloat(message, &field, i));
    } else {
      EmitMessage(reflection.GetRepeatedMessage(message, &field, i), yaml);
    }
  }
  yaml << YAML::EndSeq;
}

void EmitMessage(const Message& message, YAML::Emitter& yaml) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  if (fields.empty()) {
    yaml << YAML::Flow << YAML::BeginMap << YAML::EndMap;
    return;
  }
  if (fields.size() == 1 && fields[0] == KindField(*message.GetDescriptor())) {
    return EmitField(message, *fields[0], yaml);
  }
  yaml << YAML::BeginMap;
  for (const FieldDescriptor* field : fields) {
    yaml << YAML::Key << field->name() << YAML::Value;
    EmitField(message, *field, yaml);
  }
  yaml << YAML::EndMap;
}

void EmitField(const Message& message, const FieldDescriptor& field, YAML::Emitter& yaml) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (field.is_map()) return EmitMap(message, field, yaml);
  if (field.is_repeated()) return EmitList(message, field, yaml);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      const Message& inner = reflection.GetMessage(message, &field);
      if (inner.GetDescriptor() == google::protobuf::Struct::descriptor()) {
        EmitStruct(static_cast<const google::protobuf::Struct&>(inner), yaml);
      } else if (inner.GetDescriptor() == google::protobuf::Duration::descriptor()) {
        yaml << absl::FormatDuration(
            SpecDuration(static_cast<const google::protobuf::Duration&>(inner)));
      } else {
        EmitMessage(inner, yaml);
      }
      break;
    }
    case FieldDescriptor::CPPTYPE_INT32:
      yaml << reflection.GetInt32(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      yaml << reflection.GetInt64(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      yaml << reflection.GetUInt64(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      yaml << NumberText(reflection.GetDouble(message, &field));
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      yaml << reflection.GetBool(message, &field);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      EmitText(reflection.GetString(message, &field), yaml);
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      yaml << EnumName(*reflection.GetEnum(message, &field));
      break;
    default:
      LOG(FATAL) << field.full_name() << ": a job file cannot hold a " << field.type_name();
  }
}

}  // namespace

std::string WriteSpec(const v1::JobSpec& spec) {
  YAML::Emitter yaml;
  EmitMessage(spec, yaml);
  return absl::StrCat(yaml.c_str(), "\n");
}

std::string WriteText(const std::string& text) {
  YAML::Emitter yaml;
  EmitText(text, yaml);
  return yaml.c_str();
}

}  // namespace muster
