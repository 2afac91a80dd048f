#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/data/source_inspection.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/format/compression.h"
#include "lib/data/format/csv.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

constexpr int64_t kBytesRead = 64 << 10;
constexpr size_t kColumnsShown = 40;
constexpr size_t kFieldBytesShown = 60;

bool IsNumber(absl::string_view text) { return ParseCsvNumber(text).has_value(); }

struct Column {
  std::string name;   // "" without a header
  std::string first;  // field
  // Whether each field that was read is empty or a number, and one is a number.
  bool has_text = false;
  bool has_number = false;

  bool is_number() const { return has_number && !has_text; }

  void Add(absl::string_view field) {
    if (IsNumber(field)) {
      has_number = true;
    } else if (!field.empty()) {
      has_text = true;
    }
  }
};

// The first lines of a file.
struct Lines {
  std::vector<Column> columns;
  bool has_header = false;
  int64_t rows = 0;       // that were read, without the header
  int64_t bytes = 0;      // of the lines that were read
  bool is_whole = false;  // all lines were read
};

// Returns the byte between the fields of a line.
char SeparatorOf(absl::string_view path, absl::string_view line) {
  if (absl::EndsWith(path, ".tsv") || absl::StrContains(line, '\t')) return '\t';
  return absl::StrContains(line, ';') && !absl::StrContains(line, ',') ? ';' : ',';
}

void AddLine(const std::vector<absl::string_view>& fields, Lines& lines) {
  if (lines.columns.empty()) {
    lines.has_header = absl::c_none_of(fields, IsNumber);
    lines.columns.resize(fields.size());
    for (size_t i = 0; lines.has_header && i < fields.size(); ++i) {
      lines.columns[i].name = std::string(fields[i]);
    }
    if (lines.has_header) return;
  }
  ++lines.rows;
  for (size_t i = 0; i < std::min(fields.size(), lines.columns.size()); ++i) {
    if (lines.rows == 1) lines.columns[i].first = std::string(fields[i]);
    lines.columns[i].Add(fields[i]);
  }
}

absl::StatusOr<Lines> ReadLines(const DataFile& file, const CsvFormat& format) {
  Lines lines;
  CsvSplitter splitter;
  const absl::Status status = ScanCsv(
      file, format, kInspectedField, [&](int64_t offset, absl::string_view line) -> absl::Status {
        const absl::string_view fault = splitter.Split(line, format);
        if (!fault.empty()) {
          return DataDamaged(kInspectedField, file.path(), /*record=*/-1, offset, fault);
        }
        AddLine(splitter.fields(), lines);
        lines.bytes = offset + std::ssize(line) + 1;
        return lines.bytes < kBytesRead ? absl::OkStatus() : absl::CancelledError();
      });
  if (!status.ok() && !absl::IsCancelled(status)) return status;
  lines.is_whole = status.ok();
  if (lines.rows > 0) return lines;
  return DataTooSmall(
      kInspectedField,
      absl::StrCat(file.path(), lines.has_header ? ": has a header and no line; append samples"
                                                 : ": has no line"));
}

// Appends the columns from `first` on up to `end`, by number, or by name if it is unique.
void AddColumns(const std::vector<Column>& columns, size_t first, size_t end, v1::CsvInput& input) {
  const std::string& name = columns[first].name;
  const bool is_unique =
      !name.empty() && name.size() <= limits::kTensorNameBytesMax &&
      absl::c_count_if(columns, [&](const Column& column) { return column.name == name; }) == 1;
  if (end - first == 1 && is_unique) {
    input.add_columns(name);
  } else if (end - first == 1) {
    input.add_columns(absl::StrCat(end));
  } else {
    input.add_columns(absl::StrCat(first + 1, "-", end));
  }
}

// Fills "target" with the last number and "input" with the others. Returns whether there is one.
bool Propose(const std::vector<Column>& columns, v1::CsvData& csv) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].is_number()) numbers.push_back(i);
  }
  if (numbers.empty()) return false;
  const auto add = [&](const char* name, size_t begin, size_t end) {
    v1::CsvInput& input = (*csv.mutable_inputs())[name];
    input.mutable_number();
    while (begin < end) {
      // Many columns are shorter as ranges.
      size_t after = begin + 1;
      const bool has_ranges = !csv.header() || columns.size() > kColumnsShown;
      while (has_ranges && after < end && numbers[after] == numbers[after - 1] + 1) ++after;
      AddColumns(columns, numbers[begin], numbers[after - 1] + 1, input);
      begin = after;
    }
  };
  if (numbers.size() > 1) add("input", 0, numbers.size() - 1);
  add("target", numbers.size() - 1, numbers.size());
  return true;
}

}  // namespace

absl::StatusOr<SourceInspection> InspectCsv(const std::string& path,
                                            absl::Span<const ListedFile> files) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(files[0].path, kInspectedField));
  RETURN_IF_ERROR(CheckUncompressed(*file, kInspectedField));
  ASSIGN_OR_RETURN(const std::string first, file->ReadFirst(kBytesRead));
  const CsvFormat format = {.separator =
                                SeparatorOf(files[0].path, first.substr(0, first.find('\n')))};
  ASSIGN_OR_RETURN(const Lines lines, ReadLines(*file, format));
  const int64_t rows = lines.is_whole ? lines.rows : file->bytes() * lines.rows / lines.bytes;
  const absl::string_view separators = format.separator == '\t'  ? "tabs"
                                       : format.separator == ';' ? "semicolons"
                                                                 : "commas";
  SourceInspection inspection{
      .text = absl::StrCat(
          DescribeFiles("csv", files), "\n", files[0].path, ": ", lines.is_whole ? "" : "about ",
          Count(rows, "line"), ", ", lines.has_header ? "a header, " : "no header, ",
          Count(std::ssize(lines.columns), "column"), ", separated by ", separators, "\n"),
      .samples = rows};
  for (size_t i = 0; i < std::min(lines.columns.size(), kColumnsShown); ++i) {
    const Column& column = lines.columns[i];
    absl::StrAppend(&inspection.text, "  ",
                    lines.has_header ? absl::Utf8SafeCEscape(column.name) : absl::StrCat(i + 1),
                    ": ", column.is_number() ? "number" : "text",
                    "; first: ", absl::Utf8SafeCEscape(column.first.substr(0, kFieldBytesShown)),
                    "\n");
  }
  if (lines.columns.size() > kColumnsShown) {
    absl::StrAppend(&inspection.text, "  and ", lines.columns.size() - kColumnsShown, " more\n");
  }
  v1::CsvData csv;
  csv.set_path(path);
  csv.set_header(lines.has_header);
  const bool is_usual = format.separator == (absl::EndsWith(files[0].path, ".tsv") ? '\t' : ',');
  if (!is_usual) csv.set_separator(std::string(1, format.separator));
  if (Propose(lines.columns, csv)) *inspection.spec.mutable_csv() = csv;
  return inspection;
}

}  // namespace muster::cli
