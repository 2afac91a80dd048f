#include "cli/text/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "yaml-cpp/yaml.h"

namespace muster::cli {
namespace {

std::string JsonText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto printed = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (printed.ok()) return json;
  // The message comes from a coordinator. It may hold values that this program cannot print, such
  // as a duration that is out of range.
  const nlohmann::ordered_json error = {
      {"error", absl::StrCat(message.GetTypeName(),
                             " cannot be shown as JSON: ", std::string(printed.message()))}};
  return error.dump(/*indent=*/1, /*indent_char=*/' ', /*ensure_ascii=*/false,
                    nlohmann::json::error_handler_t::replace) +
         "\n";
}

void Emit(const nlohmann::ordered_json& value, YAML::Emitter& yaml) {
  if (value.is_object()) {
    yaml << (value.empty() ? YAML::Flow : YAML::Block) << YAML::BeginMap;
    for (const auto& [key, member] : value.items()) {
      yaml << YAML::Key << key << YAML::Value;
      Emit(member, yaml);
    }
    yaml << YAML::EndMap;
  } else if (value.is_array()) {
    yaml << (value.empty() ? YAML::Flow : YAML::Block) << YAML::BeginSeq;
    for (const auto& item : value) Emit(item, yaml);
    yaml << YAML::EndSeq;
  } else if (value.is_string()) {
    yaml << value.get<std::string>();
  } else {
    yaml << value.dump();  // numbers, true, false and null have the same form in YAML
  }
}

// One step of a path: a field by name, an item by number, or all items.
struct PathStep {
  std::string field;  // "" if it is an item
  int item = -1;      // -1: all items
};
struct PathPart {
  std::string text;  // before the path
  bool has_path = false;
  std::vector<PathStep> steps;
};

absl::Status PathError(absl::string_view expression, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("jsonpath: ", what, " in '", expression,
                   "'; use {.field}, {.field[0]}, {.field[*].field} and text between them"));
}

// Parses the text between two braces. `expression` is quoted in errors.
absl::StatusOr<std::vector<PathStep>> ParsePath(absl::string_view path,
                                                absl::string_view expression) {
  std::vector<PathStep> steps;
  if (path.empty() || (path[0] != '.' && path[0] != '[')) {
    return PathError(expression, "a path does not begin with a dot");
  }
  if (path == ".") return steps;
  while (!path.empty()) {
    if (path[0] == '.') {
      const size_t end = std::min(path.find_first_of(".[", 1), path.size());
      const absl::string_view field = path.substr(1, end - 1);
      if (field.empty()) return PathError(expression, "a dot without a field");
      steps.push_back(field == "*" ? PathStep{} : PathStep{.field = std::string(field)});
      path.remove_prefix(end);
      continue;
    }
    const size_t end = path.find(']');
    if (path[0] != '[' || end == absl::string_view::npos) {
      return PathError(expression, "a bracket is not closed");
    }
    const absl::string_view item = path.substr(1, end - 1);
    PathStep step;
    if (item != "*" && (!absl::SimpleAtoi(item, &step.item) || step.item < 0)) {
      return PathError(expression, absl::StrCat("'[", item, "]'"));
    }
    steps.push_back(step);
    path.remove_prefix(end + 1);
  }
  return steps;
}

absl::StatusOr<std::vector<PathPart>> ParseExpression(absl::string_view expression) {
  std::vector<PathPart> parts;
  for (absl::string_view rest = expression; !rest.empty();) {
    const size_t open = rest.find('{');
    PathPart& part = parts.emplace_back();
    part.text = std::string(rest.substr(0, open));
    if (open == absl::string_view::npos) break;
    const size_t close = rest.find('}', open);
    if (close == absl::string_view::npos) {
      return PathError(expression, "a brace is not closed");
    }
    auto steps = ParsePath(rest.substr(open + 1, close - open - 1), expression);
    if (!steps.ok()) return steps.status();
    part.has_path = true;
    part.steps = *std::move(steps);
    rest.remove_prefix(close + 1);
  }
  if (parts.empty()) return PathError(expression, "no path");
  return parts;
}

void Collect(const nlohmann::ordered_json& value, absl::Span<const PathStep> steps,
             std::vector<std::string>& found) {
  if (steps.empty()) {
    found.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    return;
  }
  const PathStep& step = steps.front();
  if (!step.field.empty()) {
    if (value.is_object() && value.contains(step.field)) {
      Collect(value[step.field], steps.subspan(1), found);
    }
  } else if (step.item >= 0) {
    if (value.is_array() && step.item < static_cast<int>(value.size())) {
      Collect(value[step.item], steps.subspan(1), found);
    }
  } else if (value.is_array() || value.is_object()) {
    for (const auto& item : value) Collect(item, steps.subspan(1), found);
  }
}

}  // namespace

absl::Status CheckJsonPath(absl::string_view expression) {
  return ParseExpression(expression).status();
}

std::string ToJsonPath(const google::protobuf::Message& message, absl::string_view expression) {
  const auto json = nlohmann::ordered_json::parse(JsonText(message));
  const auto parts = ParseExpression(expression);
  CHECK(parts.ok()) << parts.status();
  std::string text;
  for (const PathPart& part : *parts) {
    absl::StrAppend(&text, part.text);
    if (!part.has_path) continue;
    std::vector<std::string> found;
    Collect(json, part.steps, found);
    absl::StrAppend(&text, absl::StrJoin(found, " "));
  }
  return absl::StrCat(text, "\n");
}

std::string Table::ToString() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i]);
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string ToJson(const google::protobuf::Message& message) { return JsonText(message); }

std::string ToYamlText(const google::protobuf::Message& message) {
  YAML::Emitter yaml;
  Emit(nlohmann::ordered_json::parse(JsonText(message)), yaml);
  return absl::StrCat(yaml.c_str(), "\n");
}

std::string FormatClock(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "--:--:--";
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(duration));
  return absl::StrFormat("%02d:%02d:%02d", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

std::string FormatAge(absl::Duration age) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(age));
  if (seconds < 120) return absl::StrCat(seconds, "s");
  if (seconds < 2 * 3600) return absl::StrCat(seconds / 60, "m");
  if (seconds < 48 * 3600) return absl::StrCat(seconds / 3600, "h");
  return absl::StrCat(seconds / 86400, "d");
}

std::string FormatUtc(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

std::string FormatCount(double count) {
  if (!std::isfinite(count)) return absl::StrCat(count);
  if (std::abs(count) < 10 && count != std::floor(count)) return absl::StrFormat("%.2f", count);
  std::string digits = absl::StrFormat("%.0f", std::abs(count));
  for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, 1, ',');
  return (count < 0 ? "-" : "") + digits;
}

Terminal Terminal::Of(int fd) {
  Terminal terminal;
  const char* type = std::getenv("TERM");
  terminal.interactive = isatty(fd) && (type == nullptr || absl::string_view(type) != "dumb");
  const char* no_color = std::getenv("NO_COLOR");
  terminal.color = terminal.interactive && (no_color == nullptr || *no_color == '\0');
  winsize size{};
  if (terminal.interactive && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col;
  }
  return terminal;
}

}  // namespace muster::cli
