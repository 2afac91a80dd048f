// Formats the output of all commands: tables, JSON, YAML, sizes and times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"

namespace muster::cli {

// kSpec prints jobs as job files; it applies to jobs only.
enum class OutputFormat { kTable, kWide, kJson, kYaml, kName, kJsonPath, kSpec };

// A table with left-aligned columns, two spaces apart, without trailing spaces, with a final line
// break.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Returns the message as JSON with a final line break. Fields have their proto names and come in
// the order of their numbers.
std::string ToJson(const google::protobuf::Message& message);
// Returns the fields of ToJson() as YAML.
std::string ToYamlText(const google::protobuf::Message& message);

// Checks an expression in a subset of kubectl's JSONPath, over the fields of ToJson(). It is text
// with {.field.field[0].field} in it. [*] stands for all items of a list or all values of a map,
// joined by spaces; "{.}" is the whole message. A field that does not exist gives no text. Returns
// INVALID_ARGUMENT with the part that cannot be parsed.
absl::Status CheckJsonPath(absl::string_view expression);
// Evaluates an expression and adds a line break. Requires: CheckJsonPath(expression) is OK.
std::string ToJsonPath(const google::protobuf::Message& message, absl::string_view expression);

std::string FormatClock(absl::Duration duration);  // "00:01:10", "26:00:00"; "--:--:--" if infinite
std::string FormatAge(absl::Duration age);         // "12s", "5m", "3h", "2d"
std::string FormatUtc(absl::Time time);            // "2026-11-21 12:53:15 UTC"
std::string FormatCount(double count);             // "7", "812", "12,345", "0.25"

// The abilities of the terminal behind a file descriptor.
struct Terminal {
  bool interactive = false;  // a line can be redrawn
  bool color = false;        // interactive, and NO_COLOR is not set
  int width = 80;

  static Terminal Of(int fd);
};

}  // namespace muster::cli
