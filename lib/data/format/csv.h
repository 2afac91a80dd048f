// Reads lines of text with columns that a separator divides.
//   Source: RFC 4180. Lines may end with LF or CRLF, the last one also without. A byte order mark
//   is skipped. Empty lines are no records.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/data/file/data_file.h"

namespace muster {

struct CsvFormat {
  char separator = ',';
  // Whether a field that begins with '"' may have separators and ends of lines, until the next '"'.
  // Within it '""' stands for '"'.
  bool has_quotes = true;
  bool has_header = false;  // the first record names the columns
};

inline constexpr int64_t kCsvLineBytesMax = int64_t{16} << 20;

// Calls `take` for each record of the file with its offset and text, without the end of the line.
// The header is one, too. Ends with the first error. Takes memory for the longest line only.
// Returns DATA_DAMAGED for a quote that is not closed, and for a longer line than kCsvLineBytesMax.
// It has the number of the record; a header has none.
absl::Status ScanCsv(const DataFile& file, const CsvFormat& format, absl::string_view field,
                     absl::FunctionRef<absl::Status(int64_t offset, absl::string_view line)> take);

// Divides records into fields. Thread-compatible; reuses its memory.
class CsvSplitter {
 public:
  // Returns what is wrong with the line, or "". The fields are valid until the next Split() and as
  // long as `line`.
  absl::string_view Split(absl::string_view line, const CsvFormat& format);
  const std::vector<absl::string_view>& fields() const { return fields_; }

 private:
  absl::string_view SplitQuoted(absl::string_view line, char separator);

  std::vector<absl::string_view> fields_;
  std::string unquoted_;
};

// Returns the decimal number that the text is, rounded to the nearest double. Spaces around it are
// ignored. Independent of the locale. Returns nullopt for other text, "nan" and "inf".
std::optional<double> ParseCsvNumber(absl::string_view text);

}  // namespace muster
