#include "lib/job/yaml/yaml_tree.h"

#include <algorithm>
#include <cstddef>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/status/utf8.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace muster {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr int kValuesMax = 10'000;  // aliases expand: a few lines can expand to billions of values
constexpr int kDepthMax = 32;
constexpr size_t kQuotedBytesMax = 60;  // of a value inside a message

// Returns the line of the first byte that is not UTF-8, or 0 if there is none. NUL counts as a
// fault: text in other encodings is full of it, and yaml-cpp takes it for the beginning of an
// escape.
int LineNotUtf8(absl::string_view text) {
  int line = 1;
  while (!text.empty()) {
    const size_t size = Utf8CharacterBytes(text);
    if (size == 0 || text[0] == '\0') return line;
    if (text[0] == '\n') ++line;
    text.remove_prefix(size);
  }
  return 0;
}

// Converts yaml-cpp's nodes to YamlValues and counts them.
class TreeBuilder {
 public:
  // If `file` is "", the tree is an override, and every place is `place`.
  TreeBuilder(std::string file, std::string place)
      : file_(std::move(file)), place_(std::move(place)) {}

  // Returns the fault, or "" if there is none.
  std::string Build(const YAML::Node& node, YamlValue& value) { return Build(node, 0, value); }

 private:
  std::string Build(const YAML::Node& node, int depth, YamlValue& value) {
    if (depth > kDepthMax) {
      return absl::StrCat("values nest more than ", kDepthMax, " deep");
    }
    if (++values_ > kValuesMax) {
      return absl::StrCat("holds more than ", kValuesMax,
                          " values (an alias counts as the values that it stands for)");
    }
    value.place = Place(node.Mark());
    value.overridden = file_.empty();
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        value.kind = YamlValue::Kind::kNull;
        return "";
      case YAML::NodeType::Scalar:
        value.kind = YamlValue::Kind::kScalar;
        value.text = node.Scalar();
        value.quoted = node.Tag() == "!";
        return TextFault(value.text, node.Mark());
      case YAML::NodeType::Sequence:
        value.kind = YamlValue::Kind::kList;
        for (const YAML::Node& item : node) {
          std::string fault = Build(item, depth + 1, value.items.emplace_back());
          if (!fault.empty()) return fault;
        }
        return "";
      case YAML::NodeType::Map:
        value.kind = YamlValue::Kind::kMap;
        for (const auto& pair : node) {
          if (!pair.first.IsScalar()) {
            return absl::StrCat("a key must be a name (at ", Place(pair.first.Mark()), ")");
          }
          YamlEntry& entry = value.entries.emplace_back();
          entry.key = pair.first.Scalar();
          entry.place = Place(pair.first.Mark());
          std::string fault = TextFault(entry.key, pair.first.Mark());
          if (fault.empty()) fault = Build(pair.second, depth + 1, entry.value);
          if (!fault.empty()) return fault;
        }
        return "";
    }
    return "";
  }

  // Returns the fault of a text with a bad escape, or "": yaml-cpp turns some escapes into bytes
  // that are not UTF-8.
  std::string TextFault(const std::string& text, const YAML::Mark& mark) const {
    if (LineNotUtf8(text) == 0) return "";
    return absl::StrCat("an escape that is not a character, such as \\0, \\N or \\_ (at ",
                        Place(mark), "): write the character itself");
  }

  std::string Place(const YAML::Mark& mark) const {
    return file_.empty() ? place_ : absl::StrCat(file_, ":", std::max(0, mark.line) + 1);
  }

  const std::string file_;
  const std::string place_;
  int values_ = 0;
};

// Returns the first line that is indented by a tab, or 0. Such tabs are the most common mistake in
// YAML, and yaml-cpp's own message does not name them.
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

// Counts documents and keeps none of their content.
class DocumentStarts : public YAML::EventHandler {
 public:
  int count() const { return count_; }
  int last_line() const { return last_line_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    ++count_;
    last_line_ = std::max(0, mark.line) + 1;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int count_ = 0;
  int last_line_ = 0;
};

// Returns the line of the second document, or 0 if there is none. YAML::LoadAll() cannot be used:
// if a document begins with a comma, it finds documents without end and keeps them all.
int LineOfSecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  while (starts.count() < 2 && parser.HandleNextDocument(starts)) {
  }
  return starts.count() < 2 ? 0 : starts.last_line();
}

std::optional<LocatedFault> ReadYaml(const std::string& text, const std::string& file,
                                     YamlValue& root) {
  auto fault = [&](int line, std::string description) {
    return LocatedFault{absl::StrCat(file, ":", line), {"", std::move(description)}};
  };
  if (text.size() > kFileBytesMax) {
    return fault(1, absl::StrCat("a job file may have at most ", kFileBytesMax, " bytes (has ",
                                 text.size(), ")"));
  }
  if (const int line = LineNotUtf8(text); line > 0) {
    return fault(line, "not UTF-8: save the file in that encoding");
  }
  if (const int line = LineIndentedByTab(text); line > 0) {
    return fault(line, "a tab in the indentation; YAML wants spaces");
  }
  try {
    if (const int line = LineOfSecondDocument(text); line > 0) {
      return fault(line, "one job per file: a second document begins here");
    }
    const YAML::Node document = YAML::Load(text);
    if (document.IsNull()) {
      return fault(1, "the file is empty; examples/linear.yaml is a short complete one");
    }
    const std::string problem = TreeBuilder(file, "").Build(document, root);
    if (!problem.empty()) return fault(1, problem);
  } catch (const YAML::Exception& error) {
    return fault(std::max(0, error.mark.line) + 1, absl::StrCat("not YAML: ", error.msg));
  }
  if (root.kind != YamlValue::Kind::kMap) {
    return fault(1, absl::StrCat("a job file is a map of fields (this is ", KindName(root), ")"));
  }
  return std::nullopt;
}

YamlEntry& EntryFor(YamlValue& map, const std::string& key, const std::string& place) {
  if (map.kind != YamlValue::Kind::kMap) {
    map = YamlValue{.kind = YamlValue::Kind::kMap, .place = place};
  }
  map.overridden = true;
  for (YamlEntry& entry : map.entries) {
    if (entry.key == key) return entry;
  }
  return map.entries.emplace_back(YamlEntry{key, place, YamlValue{.place = place}});
}

std::optional<LocatedFault> ApplyOverride(const std::string& path, const std::string& text,
                                          YamlValue& root) {
  if (LineNotUtf8(path) > 0) return LocatedFault{"--set", {"", "the field is not UTF-8"}};
  const std::string place = absl::StrCat("--set ", path);
  auto fault = [&](std::string description) {
    return LocatedFault{place, {"", std::move(description)}};
  };
  const std::vector<std::string> keys = absl::StrSplit(path, '.');
  if (keys.size() > kDepthMax || std::find(keys.begin(), keys.end(), "") != keys.end()) {
    return fault("not a field path; write for example --set training.steps=500");
  }
  if (text.size() > kFileBytesMax) return fault("the value is too long");
  if (LineNotUtf8(text) > 0) return fault("the value is not UTF-8");
  YamlValue value;
  if (text.empty()) {  // YAML reads null here; on a command line it is empty text
    value = {.kind = YamlValue::Kind::kScalar, .quoted = true};
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
  YamlValue* target = &root;
  for (const std::string& key : keys) {
    YamlEntry& entry = EntryFor(*target, key, place);
    target = &entry.value;
    if (&key == &keys.back()) entry.place = place;
  }
  *target = std::move(value);
  return std::nullopt;
}

}  // namespace

std::optional<LocatedFault> ReadYamlTree(
    const std::string& text, const std::string& file,
    absl::Span<const std::pair<std::string, std::string>> overrides, YamlValue& root) {
  if (auto fault = ReadYaml(text, file, root)) return fault;
  for (const auto& [path, value] : overrides) {
    if (auto fault = ApplyOverride(path, value, root)) return fault;
  }
  return std::nullopt;
}

const YamlValue* Find(const YamlValue& map, const std::string& key, std::string& place) {
  const size_t bracket = key.find('[');
  auto entry = std::find_if(
      map.entries.begin(), map.entries.end(),
      [&](const YamlEntry& candidate) { return candidate.key == key.substr(0, bracket); });
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

std::string PlaceOf(const YamlValue& root, const std::string& path) {
  std::string place = root.place;
  const YamlValue* value = &root;
  for (const std::string& key : std::vector<std::string>(absl::StrSplit(path, '.'))) {
    value = Find(*value, key, place);
    if (value == nullptr) break;
  }
  return place;
}

std::string Quoted(absl::string_view text) {
  if (text.size() > kQuotedBytesMax) {
    return absl::StrCat("\"", text.substr(0, kQuotedBytesMax), "...\"");
  }
  return absl::StrCat("\"", text, "\"");
}

std::string KindName(const YamlValue& value) {
  switch (value.kind) {
    case YamlValue::Kind::kNull:
      return "empty";
    case YamlValue::Kind::kScalar:
      return Quoted(value.text);
    case YamlValue::Kind::kList:
      return "a list";
    case YamlValue::Kind::kMap:
      return "a map";
  }
  return "";
}

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

}  // namespace muster
