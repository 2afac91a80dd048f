// What every command's output has in common: tables, JSON, YAML, sizes and times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/message.h"

namespace muster::cli {

// kSpec: of jobs alone, as job files.
enum class OutputFormat { kTable, kWide, kJson, kYaml, kName, kJsonPath, kSpec };

// Left-aligned columns, two spaces apart, no trailing spaces, a line break at the end.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Fields named as in the proto and in the order of their numbers there, with a line break at the
// end.
std::string ToJson(const google::protobuf::Message& message);
// The same fields as YAML.
std::string ToYamlText(const google::protobuf::Message& message);

// A part of kubectl's JSONPath over the same fields: text with {.field.field[0].field} in it, [*]
// for all items and all values of a map, joined by spaces; "{.}" is everything. What is not there
// is nothing. INVALID_ARGUMENT says what of the expression is not understood.
absl::Status CheckJsonPath(absl::string_view expression);
// With a line break at the end. The expression was checked.
std::string ToJsonPath(const google::protobuf::Message& message, absl::string_view expression);

std::string FormatClock(
    absl::Duration duration);               // "00:01:10", "26:00:00", "--:--:--" when infinite
std::string FormatAge(absl::Duration age);  // "12s", "5m", "3h", "2d"
std::string FormatUtc(absl::Time time);     // "2026-11-21 12:53:15 UTC"
std::string FormatCount(double count);      // "7", "812", "12,345", "0.25"

// How a stream can be written to.
struct Terminal {
  bool interactive = false;  // one line may be redrawn
  bool color = false;        // interactive and NO_COLOR not set
  int width = 80;

  static Terminal Of(int fd);
};

}  // namespace muster::cli
