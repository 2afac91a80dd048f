#include "lib/job/spec_reader.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"
#include "google/protobuf/struct.pb.h"
#include "lib/job/spec_duration.h"
#include "lib/job/spec_names.h"
#include "lib/suggestion/suggestion.h"

namespace muster {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;

constexpr char kSpecHint[] = "muster get JOB -o spec prints a job file";
constexpr double kExactIntegerMax = 9007199254740992;  // 2^53: above it, a double skips integers

// Returns whether the proto reads 0 of this field as "unset". A user never means 0 there.
bool ZeroMeansUnset(const FieldDescriptor& field) {
  const std::string& name = field.full_name();
  return name == "muster.v1.WorkerCount.min" || name == "muster.v1.WorkerCount.max" ||
         name == "muster.v1.JobSpec.chunk_bytes" || name == "muster.v1.PolySchedule.power" ||
         name == "muster.v1.LossScale.growth_steps" || name == "muster.v1.SyncSpec.staleness" ||
         name == "muster.v1.Compression.ratio" || name == "muster.v1.Compression.rank" ||
         name == "muster.v1.BlockShuffle.window_blocks" || name == "muster.v1.BlockShuffle.lanes";
}

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

std::string UnknownName(absl::string_view what, absl::string_view name,
                        const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, known);
  if (!nearest.empty()) {
    return absl::StrCat("unknown ", what, "; did you mean '", nearest, "'?");
  }
  return absl::StrCat("unknown ", what, "; known: ", absl::StrJoin(known, ", "));
}

std::string UnknownValue(const google::protobuf::EnumDescriptor& type, const std::string& text,
                         const std::map<std::string, int>& names) {
  if (const auto* value = type.FindValueByName(text); value != nullptr && value->number() != 0) {
    return absl::StrCat("is the API's name of '", EnumName(*value), "' (", kSpecHint, ")");
  }
  std::vector<std::string> known;
  for (const auto& [name, number] : names) known.push_back(name);
  return UnknownName("value", text, known);
}

class SpecReader {
 public:
  std::vector<LocatedFault> faults;

  void ReadMessage(const YamlValue& map, const std::string& path, Message& message) {
    const Descriptor& type = *message.GetDescriptor();
    if (map.kind == YamlValue::Kind::kNull && type.field_count() == 0) return;  // "constant:"
    if (const FieldDescriptor* kind = KindField(type);
        kind != nullptr && map.kind == YamlValue::Kind::kScalar) {
      return ReadField({.key = kind->name(), .place = map.place, .value = map}, path, *kind,
                       message);
    }
    if (map.kind != YamlValue::Kind::kMap) {
      Add(map.place, path,
          absl::StrCat("expects a map of ", absl::StrJoin(FieldNames(type), ", "), " (is ",
                       KindName(map), ")"));
      return;
    }
    std::map<std::string, const YamlEntry*> seen;
    for (const YamlEntry& entry : map.entries) {
      const std::string field_path = Join(path, entry.key);
      auto [first, is_new] = seen.try_emplace(entry.key, &entry);
      if (!is_new) {
        Add(entry.place, field_path, absl::StrCat("set twice; first at ", first->second->place));
        continue;
      }
      if (type.FindFieldByName(entry.key) == nullptr) {
        Add(entry.place, field_path, UnknownName("field", entry.key, FieldNames(type)));
      }
    }
    DropDisplacedAndCheckOneofs(type, path, seen);
    for (const YamlEntry& entry : map.entries) {  // in the order of the file
      const FieldDescriptor* field = type.FindFieldByName(entry.key);
      auto kept = seen.find(entry.key);
      if (field == nullptr || kept == seen.end() || kept->second != &entry) continue;
      ReadField(entry, Join(path, entry.key), *field, message);
    }
  }

 private:
  static std::string Join(const std::string& path, const std::string& key) {
    return path.empty() ? key : absl::StrCat(path, ".", key);
  }

  void Add(const std::string& place, const std::string& path, std::string description) {
    faults.push_back({place, {path, std::move(description)}});
  }

  void DropDisplacedAndCheckOneofs(const Descriptor& type, const std::string& path,
                                   std::map<std::string, const YamlEntry*>& seen) {
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const OneofDescriptor& oneof = *type.oneof_decl(i);
      std::vector<const YamlEntry*> members;
      bool overridden = false;
      for (int j = 0; j < oneof.field_count(); ++j) {
        auto member = seen.find(oneof.field(j)->name());
        if (member == seen.end()) continue;
        members.push_back(member->second);
        overridden |= member->second->value.overridden;
      }
      if (overridden) {
        std::erase_if(members, [&](const YamlEntry* member) {
          return !member->value.overridden && seen.erase(member->key) > 0;
        });
      }
      if (members.size() < 2) continue;
      std::sort(members.begin(), members.end());  // all point into one vector: file order
      std::vector<std::string> names;
      for (const YamlEntry* member : members) names.push_back(absl::StrCat("'", member->key, "'"));
      Add(members[1]->place, Join(path, members[1]->key),
          absl::StrCat("only one of ", absl::StrJoin(names, ", "), " may be set"));
    }
  }

  void ReadField(const YamlEntry& entry, const std::string& path, const FieldDescriptor& field,
                 Message& message) {
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    const YamlValue& value = entry.value;
    if (field.is_map()) return ReadMap(value, path, field, message);
    if (field.is_repeated()) return ReadList(value, path, field, message);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message& inner = *reflection.MutableMessage(&message, &field);
      if (inner.GetDescriptor() == google::protobuf::Struct::descriptor()) {
        ReadStruct(value, path, static_cast<google::protobuf::Struct&>(inner));
      } else if (inner.GetDescriptor() == google::protobuf::Duration::descriptor()) {
        ReadDuration(entry, path, static_cast<google::protobuf::Duration&>(inner));
      } else {
        ReadMessage(value, path, inner);
      }
      return;
    }
    if (value.kind == YamlValue::Kind::kNull) {
      Add(entry.place, path, "has no value; give one or remove the line");
      return;
    }
    if (value.kind != YamlValue::Kind::kScalar) {
      Add(entry.place, path, absl::StrCat("expects a single value (is ", KindName(value), ")"));
      return;
    }
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        if (auto n = ReadInteger<int32_t>(value, path, field)) {
          reflection.SetInt32(&message, &field, *n);
        }
        return;
      case FieldDescriptor::CPPTYPE_INT64:
        if (auto n = ReadInteger<int64_t>(value, path, field)) {
          reflection.SetInt64(&message, &field, *n);
        }
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        if (auto n = ReadInteger<uint64_t>(value, path, field)) {
          reflection.SetUInt64(&message, &field, *n);
        }
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (auto x = ReadNumber(value, path, field)) reflection.SetDouble(&message, &field, *x);
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (value.quoted || (value.text != "true" && value.text != "false")) {
          Add(value.place, path,
              absl::StrCat("expects true or false (is ", Quoted(value.text), ")"));
          return;
        }
        reflection.SetBool(&message, &field, value.text == "true");
        return;
      case FieldDescriptor::CPPTYPE_STRING:
        if (IsText(value, path)) reflection.SetString(&message, &field, value.text);
        return;
      case FieldDescriptor::CPPTYPE_ENUM: {
        const std::map<std::string, int> names = EnumNames(*field.enum_type());
        auto found = names.find(value.text);
        if (found == names.end()) {
          Add(value.place, path,
              absl::StrCat(Quoted(value.text), ": ",
                           UnknownValue(*field.enum_type(), value.text, names)));
          return;
        }
        reflection.SetEnumValue(&message, &field, found->second);
        return;
      }
      default:
        LOG(FATAL) << field.full_name() << ": a job file cannot hold a " << field.type_name();
    }
  }

  // Reads a list of messages, texts or floats; the API has no other lists.
  void ReadList(const YamlValue& list, const std::string& path, const FieldDescriptor& field,
                Message& message) {
    if (list.kind != YamlValue::Kind::kList) {
      Add(list.place, path,
          absl::StrCat("expects a list (is ", KindName(list), "); write it in [brackets]"));
      return;
    }
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    for (size_t i = 0; i < list.items.size(); ++i) {
      const YamlValue& item = list.items[i];
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        ReadMessage(item, item_path, *reflection.AddMessage(&message, &field));
        continue;
      }
      const bool is_float = field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT;
      CHECK(is_float || field.cpp_type() == FieldDescriptor::CPPTYPE_STRING)
          << field.full_name() << ": a job file cannot hold a list of " << field.type_name();
      if (item.kind != YamlValue::Kind::kScalar) {
        Add(item.place, item_path,
            absl::StrCat("expects ", is_float ? "a number" : "text", " (is ", KindName(item), ")"));
      } else if (is_float) {
        const auto x = ReadNumber(item, item_path, field);
        if (x && std::abs(*x) > std::numeric_limits<float>::max()) {
          Add(item.place, item_path, absl::StrCat("must fit into a float (is ", item.text, ")"));
        } else if (x) {
          reflection.AddFloat(&message, &field, static_cast<float>(*x));
        }
      } else if (IsText(item, item_path)) {
        reflection.AddString(&message, &field, item.text);
      }
    }
  }

  // Returns whether YAML reads the scalar as text. Adds a fault otherwise.
  bool IsText(const YamlValue& value, const std::string& path) {
    if (value.quoted || LooksLikeText(value.text)) return true;
    Add(value.place, path,
        absl::StrCat("expects text (is ", value.text, "); write it in quotes: \"", value.text,
                     "\""));
    return false;
  }

  // Reads a map. Every key is text, even if it looks like a number.
  void ReadMap(const YamlValue& map, const std::string& path, const FieldDescriptor& field,
               Message& message) {
    if (map.kind != YamlValue::Kind::kMap) {
      Add(map.place, path, absl::StrCat("expects a map (is ", KindName(map), ")"));
      return;
    }
    std::map<std::string, const YamlEntry*> seen;
    for (const YamlEntry& entry : map.entries) {
      const std::string entry_path = Join(path, entry.key);
      auto [first, is_new] = seen.try_emplace(entry.key, &entry);
      if (!is_new) {
        Add(entry.place, entry_path, absl::StrCat("set twice; first at ", first->second->place));
        continue;
      }
      Message& added = *message.GetReflection()->AddMessage(&message, &field);
      added.GetReflection()->SetString(&added, field.message_type()->map_key(), entry.key);
      ReadField(entry, entry_path, *field.message_type()->map_value(), added);
    }
  }

  template <typename Integer>
  std::optional<Integer> ReadInteger(const YamlValue& value, const std::string& path,
                                     const FieldDescriptor& field) {
    Integer number = 0;
    if (value.quoted || !LooksLikeInteger(value.text)) {
      Add(value.place, path, NotAnInteger(value));
    } else if (!std::numeric_limits<Integer>::is_signed && value.text[0] == '-') {
      Add(value.place, path, absl::StrCat("must not be negative (is ", value.text, ")"));
    } else if (!absl::SimpleAtoi(value.text, &number)) {
      Add(value.place, path,
          absl::StrCat("must be between ", std::numeric_limits<Integer>::min(), " and ",
                       std::numeric_limits<Integer>::max(), " (is ", value.text, ")"));
    } else if (number == 0 && ZeroMeansUnset(field)) {
      Add(value.place, path, "must be at least 1 (is 0); leave it out for the default");
    } else {
      return number;
    }
    return std::nullopt;
  }

  static std::string NotAnInteger(const YamlValue& value) {
    double number = 0;
    if (!value.quoted && absl::SimpleAtod(value.text, &number) && number == std::floor(number) &&
        std::abs(number) < kExactIntegerMax) {
      return absl::StrFormat("expects a whole number in plain digits; write %d instead of %s",
                             static_cast<int64_t>(number), value.text);
    }
    return absl::StrCat("expects a whole number (is ", Quoted(value.text), ")");
  }

  std::optional<double> ReadNumber(const YamlValue& value, const std::string& path,
                                   const FieldDescriptor& field) {
    double number = 0;
    if (value.quoted || !LooksLikeNumber(value.text)) {
      Add(value.place, path, absl::StrCat("expects a number (is ", Quoted(value.text), ")"));
    } else if (!absl::SimpleAtod(value.text, &number) || !std::isfinite(number)) {
      Add(value.place, path, absl::StrCat("must be a finite number (is ", value.text, ")"));
    } else if (number == 0 && ZeroMeansUnset(field)) {
      Add(value.place, path, "must be greater than 0 (is 0); leave it out for the default");
    } else {
      return number;
    }
    return std::nullopt;
  }

  void ReadDuration(const YamlEntry& entry, const std::string& path,
                    google::protobuf::Duration& out) {
    const YamlValue& value = entry.value;
    if (value.kind == YamlValue::Kind::kNull) {
      Add(entry.place, path, "has no value; give one or remove the line");
      return;
    }
    if (value.kind != YamlValue::Kind::kScalar) {
      Add(value.place, path,
          absl::StrCat("expects a time, 90s for one (is ", KindName(value), ")"));
      return;
    }
    absl::Duration duration;
    if (!absl::ParseDuration(value.text, &duration) || duration == absl::InfiniteDuration() ||
        duration == -absl::InfiniteDuration()) {
      Add(value.place, path,
          absl::StrCat("expects a time with its unit: 500ms, 90s, 15m, 12h, 1h30m (is ",
                       Quoted(value.text), ")"));
      return;
    }
    out = SpecDuration(duration);
  }

  void ReadStruct(const YamlValue& map, const std::string& path, google::protobuf::Struct& fields) {
    if (map.kind == YamlValue::Kind::kNull) return;
    if (map.kind != YamlValue::Kind::kMap) {
      Add(map.place, path, absl::StrCat("expects a map (is ", KindName(map), ")"));
      return;
    }
    for (const YamlEntry& entry : map.entries) {
      const std::string field_path = Join(path, entry.key);
      if (fields.fields().contains(entry.key)) {
        Add(entry.place, field_path, "set twice");
        continue;
      }
      ReadStructValue(entry.value, field_path, (*fields.mutable_fields())[entry.key]);
    }
  }

  void ReadStructValue(const YamlValue& value, const std::string& path,
                       google::protobuf::Value& out) {
    switch (value.kind) {
      case YamlValue::Kind::kNull:
        Add(value.place, path, "has no value; give one or remove the line");
        return;
      case YamlValue::Kind::kList:
        for (const YamlValue& item : value.items) {
          ReadStructValue(item, path, *out.mutable_list_value()->add_values());
        }
        return;
      case YamlValue::Kind::kMap:
        ReadStruct(value, path, *out.mutable_struct_value());
        return;
      case YamlValue::Kind::kScalar:
        break;
    }
    double number = 0;
    if (!value.quoted && (value.text == "true" || value.text == "false")) {
      out.set_bool_value(value.text == "true");
    } else if (value.quoted || !LooksLikeNumber(value.text)) {
      out.set_string_value(value.text);
    } else if (!absl::SimpleAtod(value.text, &number) || !std::isfinite(number)) {
      Add(value.place, path, absl::StrCat("must be a finite number (is ", value.text, ")"));
    } else if (LooksLikeInteger(value.text) && std::abs(number) > kExactIntegerMax) {
      Add(value.place, path, absl::StrCat("must be at most 2^53 (is ", value.text, ")"));
    } else {
      out.set_number_value(number);
    }
  }
};

// resources.ps may be 0 with allreduce only. In other modes the API reads 0 as "unset", which a
// user never means.
std::optional<LocatedFault> ZeroPsFault(const YamlValue& root, const v1::JobSpec& spec) {
  if (spec.sync().mode() == v1::ALLREDUCE || spec.resources().ps() != 0) return std::nullopt;
  std::string place;
  const YamlValue* resources = Find(root, "resources", place);
  const YamlValue* ps = resources == nullptr ? nullptr : Find(*resources, "ps", place);
  if (ps == nullptr || ps->kind != YamlValue::Kind::kScalar || !LooksLikeInteger(ps->text)) {
    return std::nullopt;
  }
  return LocatedFault{place,
                      {"resources.ps",
                       "must be at least 1 (is 0); leave it out for the default, or train without "
                       "ps by sync: {mode: allreduce}"}};
}

// Finds the output of -o yaml or -o json, a common mistake. It holds the spec of a job with the
// API's names.
std::optional<LocatedFault> JobOfApiFault(const YamlValue& root) {
  std::string place, unused;
  const YamlValue* const spec = Find(root, "spec", place);
  if (spec == nullptr || Find(root, "state", unused) == nullptr) return std::nullopt;
  return LocatedFault{
      place,
      {"spec", absl::StrCat("this is a job as the API prints it, not a job file; ", kSpecHint)}};
}

}  // namespace

std::vector<LocatedFault> ReadSpec(const YamlValue& root, v1::JobSpec& spec) {
  if (auto fault = JobOfApiFault(root)) return {*fault};
  SpecReader reader;
  reader.ReadMessage(root, "", spec);
  if (auto fault = ZeroPsFault(root, spec)) reader.faults.push_back(*fault);
  return std::move(reader.faults);
}

}  // namespace muster
