#include "lib/job/job_file.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/struct.pb.h"
#include "lib/status/field_fault.h"
#include "lib/suggestion/suggestion.h"
#include "yaml-cpp/yaml.h"

namespace muster {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;

constexpr size_t kFileBytesMax = 1 << 20;
constexpr int kValuesMax = 10'000;  // aliases expand: a few lines can stand for billions
constexpr int kDepthMax = 32;
constexpr size_t kFaultsMax = 50;                      // more say nothing new
constexpr size_t kQuotedBytesMax = 60;                 // of a value inside a message
constexpr double kExactIntegerMax = 9007199254740992;  // 2^53: beyond, a double skips integers

struct LocatedFault {
  std::string place;  // "job.yaml:12" or "--set training.steps"
  FieldFault fault;
};

absl::Status ToStatus(const std::vector<LocatedFault>& faults) {
  std::vector<FieldFault> fields;
  std::vector<std::string> lines;
  for (const LocatedFault& located : faults) {
    if (lines.size() == kFaultsMax) {
      lines.push_back(absl::StrCat("... and ", faults.size() - kFaultsMax, " more"));
      break;
    }
    fields.push_back(located.fault);
    lines.push_back(absl::StrCat(located.place, ": ", located.fault.field,
                                 located.fault.field.empty() ? "" : ": ",
                                 located.fault.description));
  }
  const absl::Status unplaced = FaultsToStatus(fields);
  absl::Status status(unplaced.code(), absl::StrJoin(lines, "\n"));
  unplaced.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { status.SetPayload(url, payload); });
  return status;
}

// ---------------------------------------------------------------- YAML, with places

struct Entry;

// A YAML node with aliases expanded and the place it came from.
struct Value {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string place;
  bool overridden = false;  // set by an override, or holds something that was
  bool quoted = false;      // a scalar that is text whatever it looks like
  std::string text;
  std::vector<Value> items;
  std::vector<Entry> entries;
};

struct Entry {
  std::string key;
  std::string place;
  Value value;
};

std::string Quoted(absl::string_view text) {
  if (text.size() > kQuotedBytesMax) {
    return absl::StrCat("\"", text.substr(0, kQuotedBytesMax), "...\"");
  }
  return absl::StrCat("\"", text, "\"");
}

std::string KindName(const Value& value) {
  switch (value.kind) {
    case Value::Kind::kNull:
      return "empty";
    case Value::Kind::kScalar:
      return Quoted(value.text);
    case Value::Kind::kList:
      return "a list";
    case Value::Kind::kMap:
      return "a map";
  }
  return "";
}

// Turns yaml-cpp's nodes into Values, counting them.
class TreeBuilder {
 public:
  // `file` "" means an override: every place is `place`.
  TreeBuilder(std::string file, std::string place)
      : file_(std::move(file)), place_(std::move(place)) {}

  // "" or what is wrong.
  std::string Build(const YAML::Node& node, Value& value) { return Build(node, 0, value); }

 private:
  std::string Build(const YAML::Node& node, int depth, Value& value) {
    if (depth > kDepthMax) {
      return absl::StrCat("values nest more than ", kDepthMax, " deep");
    }
    if (++values_ > kValuesMax) {
      return absl::StrCat("holds more than ", kValuesMax,
                          " values (aliases count as what they stand for)");
    }
    value.place = Place(node.Mark());
    value.overridden = file_.empty();
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        value.kind = Value::Kind::kNull;
        return "";
      case YAML::NodeType::Scalar:
        value.kind = Value::Kind::kScalar;
        value.text = node.Scalar();
        value.quoted = node.Tag() == "!";
        return "";
      case YAML::NodeType::Sequence:
        value.kind = Value::Kind::kList;
        for (const YAML::Node& item : node) {
          std::string fault = Build(item, depth + 1, value.items.emplace_back());
          if (!fault.empty()) return fault;
        }
        return "";
      case YAML::NodeType::Map:
        value.kind = Value::Kind::kMap;
        for (const auto& pair : node) {
          if (!pair.first.IsScalar()) {
            return absl::StrCat("a key must be a name (at ", Place(pair.first.Mark()), ")");
          }
          Entry& entry = value.entries.emplace_back();
          entry.key = pair.first.Scalar();
          entry.place = Place(pair.first.Mark());
          std::string fault = Build(pair.second, depth + 1, entry.value);
          if (!fault.empty()) return fault;
        }
        return "";
    }
    return "";
  }

  std::string Place(const YAML::Mark& mark) const {
    return file_.empty() ? place_ : absl::StrCat(file_, ":", std::max(0, mark.line) + 1);
  }

  const std::string file_;
  const std::string place_;
  int values_ = 0;
};

// Tabs in front of a line are YAML's most common trap; yaml-cpp's own message does not name them.
// 0: none.
int LineIndentedByTab(const std::string& text) {
  int line = 1;
  bool indentation = true;
  for (char c : text) {
    if (c == '\n') {
      ++line;
      indentation = true;
    } else if (c == '\t' && indentation) {
      return line;
    } else if (c != ' ') {
      indentation = false;
    }
  }
  return 0;
}

std::optional<LocatedFault> ReadYaml(const std::string& text, const std::string& file,
                                     Value& root) {
  auto fault = [&](int line, std::string description) {
    return LocatedFault{absl::StrCat(file, ":", line), {"", std::move(description)}};
  };
  if (text.size() > kFileBytesMax) {
    return fault(1, absl::StrCat("a job file may have at most ", kFileBytesMax, " bytes (has ",
                                 text.size(), ")"));
  }
  if (const int line = LineIndentedByTab(text); line > 0) {
    return fault(line, "a tab in the indentation; YAML wants spaces");
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.empty() || documents[0].IsNull()) {
      return fault(1, "the file is empty; examples/linear.yaml is a short complete one");
    }
    if (documents.size() > 1) {
      return fault(documents[1].Mark().line + 1,
                   absl::StrCat("one job per file (this has ", documents.size(), " documents)"));
    }
    const std::string problem = TreeBuilder(file, "").Build(documents[0], root);
    if (!problem.empty()) return fault(1, problem);
  } catch (const YAML::Exception& error) {
    return fault(std::max(0, error.mark.line) + 1, absl::StrCat("not YAML: ", error.msg));
  }
  if (root.kind != Value::Kind::kMap) {
    return fault(1, absl::StrCat("a job file is a map of fields (this is ", KindName(root), ")"));
  }
  return std::nullopt;
}

Entry& EntryFor(Value& map, const std::string& key, const std::string& place) {
  if (map.kind != Value::Kind::kMap) {
    map = Value{.kind = Value::Kind::kMap, .place = place};
  }
  map.overridden = true;
  for (Entry& entry : map.entries) {
    if (entry.key == key) return entry;
  }
  return map.entries.emplace_back(Entry{key, place, Value{.place = place}});
}

std::optional<LocatedFault> ApplyOverride(const std::string& path, const std::string& text,
                                          Value& root) {
  const std::string place = absl::StrCat("--set ", path);
  auto fault = [&](std::string description) {
    return LocatedFault{place, {"", std::move(description)}};
  };
  const std::vector<std::string> keys = absl::StrSplit(path, '.');
  if (keys.size() > kDepthMax || std::find(keys.begin(), keys.end(), "") != keys.end()) {
    return fault("not a field path; write for example --set training.steps=500");
  }
  if (text.size() > kFileBytesMax) return fault("the value is too long");
  Value value;
  if (text.empty()) {  // YAML would say null; on a command line it is empty text
    value = {.kind = Value::Kind::kScalar, .quoted = true};
  } else {
    try {
      const std::string problem = TreeBuilder("", place).Build(YAML::Load(text), value);
      if (!problem.empty()) return fault(problem);
    } catch (const YAML::Exception& error) {
      return fault(absl::StrCat("not a YAML value: ", error.msg));
    }
  }
  value.place = place;
  value.overridden = true;
  Value* target = &root;
  for (const std::string& key : keys) {
    Entry& entry = EntryFor(*target, key, place);
    target = &entry.value;
    if (&key == &keys.back()) entry.place = place;
  }
  *target = std::move(value);
  return std::nullopt;
}

// ---------------------------------------------------------------- YAML -> messages

bool LooksLikeInteger(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

bool LooksLikeNumber(const std::string& text) {
  double number;
  const std::string lower = absl::AsciiStrToLower(text);
  return absl::SimpleAtod(text, &number) || lower == ".nan" || absl::EndsWith(lower, ".inf");
}

bool LooksLikeText(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  return !LooksLikeNumber(text) && lower != "true" && lower != "false" && lower != "null" &&
         lower != "~";
}

// Proto fields whose 0 means "unset" and which nobody means to set to 0.
bool ZeroMeansUnset(const FieldDescriptor& field) {
  const std::string& name = field.full_name();
  return name == "muster.v1.WorkerCount.min" || name == "muster.v1.WorkerCount.max" ||
         name == "muster.v1.JobSpec.chunk_bytes" || name == "muster.v1.PolySchedule.power" ||
         name == "muster.v1.LossScale.growth_steps" || name == "muster.v1.SyncSpec.staleness" ||
         name == "muster.v1.Compression.ratio" || name == "muster.v1.Compression.rank";
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

// What an enum's values begin with, all but UNSPECIFIED: "COMPRESSION_", or "".
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

// A value as job files write it: in lower case, without what all of its enum begin with.
std::string EnumName(const EnumValueDescriptor& value) {
  const size_t prefix = CommonPrefix(*value.type()).size();
  return absl::AsciiStrToLower(absl::string_view(value.name()).substr(prefix));
}

// All but UNSPECIFIED.
std::map<std::string, int> EnumNames(const EnumDescriptor& type) {
  std::map<std::string, int> names;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) names[EnumName(*type.value(i))] = type.value(i)->number();
  }
  return names;
}

// A message with an enum "kind" may be written as the kind alone: "compression: int8". The field,
// or null.
const FieldDescriptor* KindField(const Descriptor& type) {
  const FieldDescriptor* kind = type.FindFieldByName("kind");
  return kind != nullptr && kind->cpp_type() == FieldDescriptor::CPPTYPE_ENUM ? kind : nullptr;
}

class SpecReader {
 public:
  std::vector<LocatedFault> faults;

  void ReadMessage(const Value& map, const std::string& path, Message& message) {
    const Descriptor& type = *message.GetDescriptor();
    if (map.kind == Value::Kind::kNull && type.field_count() == 0) return;  // "constant:"
    if (const FieldDescriptor* kind = KindField(type);
        kind != nullptr && map.kind == Value::Kind::kScalar) {
      return ReadField({.key = kind->name(), .place = map.place, .value = map}, path, *kind,
                       message);
    }
    if (map.kind != Value::Kind::kMap) {
      Add(map.place, path,
          absl::StrCat("expects a map of ", absl::StrJoin(FieldNames(type), ", "), " (is ",
                       KindName(map), ")"));
      return;
    }
    std::map<std::string, const Entry*> seen;
    for (const Entry& entry : map.entries) {
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
    for (const Entry& entry : map.entries) {  // in the order of the file
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
                                   std::map<std::string, const Entry*>& seen) {
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const OneofDescriptor& oneof = *type.oneof_decl(i);
      std::vector<const Entry*> members;
      bool overridden = false;
      for (int j = 0; j < oneof.field_count(); ++j) {
        auto member = seen.find(oneof.field(j)->name());
        if (member == seen.end()) continue;
        members.push_back(member->second);
        overridden |= member->second->value.overridden;
      }
      if (overridden) {
        std::erase_if(members, [&](const Entry* member) {
          return !member->value.overridden && seen.erase(member->key) > 0;
        });
      }
      if (members.size() < 2) continue;
      std::sort(members.begin(), members.end());  // all point into one vector: file order
      std::vector<std::string> names;
      for (const Entry* member : members) names.push_back(absl::StrCat("'", member->key, "'"));
      Add(members[1]->place, Join(path, members[1]->key),
          absl::StrCat("only one of ", absl::StrJoin(names, ", "), " may be set"));
    }
  }

  void ReadField(const Entry& entry, const std::string& path, const FieldDescriptor& field,
                 Message& message) {
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    const Value& value = entry.value;
    if (field.is_map()) return ReadMap(value, path, field, message);
    if (field.is_repeated()) return ReadList(value, path, field, message);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message& inner = *reflection.MutableMessage(&message, &field);
      if (inner.GetDescriptor() == google::protobuf::Struct::descriptor()) {
        ReadStruct(value, path, static_cast<google::protobuf::Struct&>(inner));
      } else {
        ReadMessage(value, path, inner);
      }
      return;
    }
    if (value.kind == Value::Kind::kNull) {
      Add(entry.place, path, "has no value; give one or remove the line");
      return;
    }
    if (value.kind != Value::Kind::kScalar) {
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
          std::vector<std::string> known;
          for (const auto& [name, number] : names) known.push_back(name);
          Add(value.place, path,
              absl::StrCat(Quoted(value.text), ": ", UnknownName("value", value.text, known)));
          return;
        }
        reflection.SetEnumValue(&message, &field, found->second);
        return;
      }
      default:
        LOG(FATAL) << field.full_name() << ": a job file cannot hold a " << field.type_name();
    }
  }

  // Of messages or texts.
  void ReadList(const Value& list, const std::string& path, const FieldDescriptor& field,
                Message& message) {
    if (list.kind != Value::Kind::kList) {
      Add(list.place, path,
          absl::StrCat("expects a list (is ", KindName(list), "); write it in [brackets]"));
      return;
    }
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    for (size_t i = 0; i < list.items.size(); ++i) {
      const Value& item = list.items[i];
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        ReadMessage(item, item_path, *reflection.AddMessage(&message, &field));
      } else if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
        LOG(FATAL) << field.full_name() << ": a job file cannot hold a list of "
                   << field.type_name();
      } else if (item.kind != Value::Kind::kScalar) {
        Add(item.place, item_path, absl::StrCat("expects text (is ", KindName(item), ")"));
      } else if (IsText(item, item_path)) {
        reflection.AddString(&message, &field, item.text);
      }
    }
  }

  // A scalar that YAML takes for text; a fault otherwise.
  bool IsText(const Value& value, const std::string& path) {
    if (value.quoted || LooksLikeText(value.text)) return true;
    Add(value.place, path,
        absl::StrCat("expects text (is ", value.text, "); write it in quotes: \"", value.text,
                     "\""));
    return false;
  }

  // Keys are text, whatever they look like.
  void ReadMap(const Value& map, const std::string& path, const FieldDescriptor& field,
               Message& message) {
    if (map.kind != Value::Kind::kMap) {
      Add(map.place, path, absl::StrCat("expects a map (is ", KindName(map), ")"));
      return;
    }
    std::map<std::string, const Entry*> seen;
    for (const Entry& entry : map.entries) {
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
  std::optional<Integer> ReadInteger(const Value& value, const std::string& path,
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

  static std::string NotAnInteger(const Value& value) {
    double number = 0;
    if (!value.quoted && absl::SimpleAtod(value.text, &number) && number == std::floor(number) &&
        std::abs(number) < kExactIntegerMax) {
      return absl::StrFormat("expects a whole number in plain digits; write %d instead of %s",
                             static_cast<int64_t>(number), value.text);
    }
    return absl::StrCat("expects a whole number (is ", Quoted(value.text), ")");
  }

  std::optional<double> ReadNumber(const Value& value, const std::string& path,
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

  void ReadStruct(const Value& map, const std::string& path, google::protobuf::Struct& fields) {
    if (map.kind == Value::Kind::kNull) return;
    if (map.kind != Value::Kind::kMap) {
      Add(map.place, path, absl::StrCat("expects a map (is ", KindName(map), ")"));
      return;
    }
    for (const Entry& entry : map.entries) {
      const std::string field_path = Join(path, entry.key);
      if (fields.fields().contains(entry.key)) {
        Add(entry.place, field_path, "set twice");
        continue;
      }
      ReadStructValue(entry.value, field_path, (*fields.mutable_fields())[entry.key]);
    }
  }

  void ReadStructValue(const Value& value, const std::string& path, google::protobuf::Value& out) {
    switch (value.kind) {
      case Value::Kind::kNull:
        Add(value.place, path, "has no value; give one or remove the line");
        return;
      case Value::Kind::kList:
        for (const Value& item : value.items) {
          ReadStructValue(item, path, *out.mutable_list_value()->add_values());
        }
        return;
      case Value::Kind::kMap:
        ReadStruct(value, path, *out.mutable_struct_value());
        return;
      case Value::Kind::kScalar:
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

// The whole file with its overrides as a tree; the first thing that prevents one otherwise.
std::optional<LocatedFault> ReadTree(const std::string& text, const std::string& file,
                                     const JobOverrides& overrides, Value& root) {
  if (auto fault = ReadYaml(text, file, root)) return fault;
  for (const auto& [path, value] : overrides) {
    if (auto fault = ApplyOverride(path, value, root)) return fault;
  }
  return std::nullopt;
}

// The value at `key`, "name" or "name[3]", and the place it was set; nullptr when it is not set.
const Value* Find(const Value& map, const std::string& key, std::string& place) {
  const size_t bracket = key.find('[');
  auto entry = std::find_if(map.entries.begin(), map.entries.end(), [&](const Entry& candidate) {
    return candidate.key == key.substr(0, bracket);
  });
  if (entry == map.entries.end()) return nullptr;
  place = entry->place;
  if (bracket == std::string::npos) return &entry->value;
  size_t index = 0;
  if (!absl::SimpleAtoi(key.substr(bracket + 1, key.size() - bracket - 2), &index) ||
      index >= entry->value.items.size()) {
    return &entry->value;
  }
  place = entry->value.items[index].place;
  return &entry->value.items[index];
}

std::string PlaceOf(const Value& root, const std::string& path) {
  std::string place = root.place;
  const Value* value = &root;
  for (const std::string& key : std::vector<std::string>(absl::StrSplit(path, '.'))) {
    value = Find(*value, key, place);
    if (value == nullptr) break;
  }
  return place;
}

// 0 ps are what allreduce has. Elsewhere the API takes 0 for "unset", and nobody means that.
std::optional<LocatedFault> ZeroPsFault(const Value& root, const v1::JobSpec& spec) {
  if (spec.sync().mode() == v1::ALLREDUCE || spec.resources().ps() != 0) return std::nullopt;
  std::string place;
  const Value* resources = Find(root, "resources", place);
  const Value* ps = resources == nullptr ? nullptr : Find(*resources, "ps", place);
  if (ps == nullptr || ps->kind != Value::Kind::kScalar || !LooksLikeInteger(ps->text)) {
    return std::nullopt;
  }
  return LocatedFault{place,
                      {"resources.ps",
                       "must be at least 1 (is 0); leave it out for the default, or train without "
                       "ps by sync: {mode: allreduce}"}};
}

// ---------------------------------------------------------------- messages -> YAML

// The fewest digits that read back as the same number.
std::string NumberText(double number) {
  if (number == std::floor(number) && std::abs(number) < 1e15) {
    return absl::StrFormat("%d", static_cast<int64_t>(number));
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

// A map of texts, sorted by key.
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

// Of messages or texts.
void EmitList(const Message& message, const FieldDescriptor& field, YAML::Emitter& yaml) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const bool texts = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  if (texts) yaml << YAML::Flow;
  yaml << YAML::BeginSeq;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    if (texts) {
      EmitText(reflection.GetRepeatedString(message, &field, i), yaml);
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

absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file,
                                         const JobOverrides& overrides) {
  Value root;
  if (auto fault = ReadTree(text, file, overrides, root)) return ToStatus({*fault});
  v1::JobSpec spec;
  SpecReader reader;
  reader.ReadMessage(root, "", spec);
  if (auto fault = ZeroPsFault(root, spec)) reader.faults.push_back(*fault);
  if (!reader.faults.empty()) return ToStatus(reader.faults);
  return spec;
}

absl::Status LocateFaults(const absl::Status& status, const std::string& text,
                          const std::string& file, const JobOverrides& overrides) {
  const std::vector<FieldFault> faults = FaultsOf(status);
  Value root;
  if (faults.empty() || ReadTree(text, file, overrides, root)) return status;
  std::vector<LocatedFault> located;
  for (const FieldFault& fault : faults) located.push_back({PlaceOf(root, fault.field), fault});
  return ToStatus(located);
}

std::string ToYaml(const v1::JobSpec& spec) {
  YAML::Emitter yaml;
  EmitMessage(spec, yaml);
  return absl::StrCat(yaml.c_str(), "\n");
}

}  // namespace muster
