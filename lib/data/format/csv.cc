#include "lib/data/format/csv.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/charconv.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "lib/data/data_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kScanBytes = size_t{1} << 20;

const char* Find(const char* begin, const char* end, char byte) {
  return static_cast<const char*>(std::memchr(begin, byte, end - begin));
}

// Returns the LF that ends the record at `begin`, or nullptr if it is not before `end`.
const char* EndOfQuoted(const char* begin, const char* end, char separator) {
  bool at_start = true, quoted = false;
  for (const char* at = begin; at < end; ++at) {
    if (quoted) {
      // '""' closes the quote and opens it again.
      at = Find(at, end, '"');
      if (at == nullptr) return nullptr;
      quoted = false;
      if (at + 1 < end && at[1] == '"') {
        quoted = true;
        ++at;
      }
    } else if (*at == '\n') {
      return at;
    } else if (*at == '"' && at_start) {
      quoted = true;
    } else {
      at_start = *at == separator;
      continue;
    }
    at_start = false;
  }
  return nullptr;
}

// Finds the ends of records in `window`, which starts with a record.
class LineFinder {
 public:
  LineFinder(const CsvFormat& format, absl::string_view window)
      : format_(format), at_(window.data()), end_(window.data() + window.size()) {
    // A window without a quote needs no further look for one.
    quote_ = format.has_quotes ? Find(at_, end_, '"') : nullptr;
  }

  // Returns the next record and its LF, or nullopt if its end is not in the window.
  std::optional<absl::string_view> Next() {
    const char* line_end = Find(at_, end_, '\n');
    if (line_end == nullptr) return std::nullopt;
    if (quote_ != nullptr && quote_ < at_) quote_ = Find(at_, end_, '"');
    if (quote_ != nullptr && quote_ < line_end) {
      line_end = EndOfQuoted(at_, end_, format_.separator);
      if (line_end == nullptr) return std::nullopt;
    }
    const absl::string_view line(at_, line_end + 1 - at_);
    at_ = line_end + 1;
    return line;
  }

 private:
  const CsvFormat format_;
  const char* at_;
  const char* const end_;
  const char* quote_;  // the next one; nullptr: none follows
};

absl::string_view WithoutEnd(absl::string_view line) {
  if (absl::EndsWith(line, "\n")) line.remove_suffix(1);
  if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
  return line;
}

constexpr std::array<double, 16> kPowersOfTen = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};

// Returns a number of at most 15 digits. Its digits and the power of ten are exact doubles, so that
// one division rounds correctly.
std::optional<double> ParseShortNumber(absl::string_view text) {
  const bool is_negative = text[0] == '-';
  int64_t digits = 0;
  size_t count = 0, fraction = 0;
  bool has_point = false;
  for (size_t at = is_negative ? 1 : 0; at < text.size(); ++at) {
    const auto digit = static_cast<unsigned char>(text[at] - '0');
    if (digit <= 9) {
      if (++count == kPowersOfTen.size()) return std::nullopt;
      digits = digits * 10 + digit;
      fraction += has_point;
    } else if (text[at] == '.' && !has_point) {
      has_point = true;
    } else {
      return std::nullopt;
    }
  }
  if (count == 0) return std::nullopt;
  const double value = fraction == 0 ? digits : digits / kPowersOfTen[fraction];
  return is_negative ? -value : value;
}

}  // namespace

absl::Status ScanCsv(const DataFile& file, const CsvFormat& format, absl::string_view field,
                     absl::FunctionRef<absl::Status(int64_t offset, absl::string_view line)> take) {
  std::string buffer;
  int64_t offset = 0;  // of the buffer in the file
  int64_t record = format.has_header ? -1 : 0;
  const auto damaged = [&](const char* begin, absl::string_view message) {
    return DataDamaged(field, file.path(), record, offset + (begin - buffer.data()), message);
  };
  const auto too_long = [&](const char* begin) {
    return damaged(begin, absl::StrCat("a line of more than ", kCsvLineBytesMax,
                                       " bytes; is a quote not closed?"));
  };
  auto take_line = [&](absl::string_view line) -> absl::Status {
    absl::string_view text = WithoutEnd(line);
    if (text.empty()) return absl::OkStatus();
    if (std::ssize(text) > kCsvLineBytesMax) return too_long(text.data());
    RETURN_IF_ERROR(take(offset + (line.data() - buffer.data()), text));
    ++record;
    return absl::OkStatus();
  };
  size_t kept = 0;  // bytes of an incomplete record at the start of the buffer
  while (true) {
    // A long record doubles the window, so that it is not searched again for each piece of it.
    buffer.resize(kept + std::max(kScanBytes, kept));
    auto* to = reinterpret_cast<std::byte*>(buffer.data()) + kept;
    ASSIGN_OR_RETURN(const int64_t got,
                     file.ReadSome(offset + kept, absl::MakeSpan(to, buffer.size() - kept)));
    const bool is_last = got < static_cast<int64_t>(buffer.size() - kept);
    // The last line gets an end, so that it needs no code of its own. The buffer has room for it.
    if (is_last) buffer[kept + got] = '\n';
    absl::string_view window(buffer.data(), kept + got + (is_last ? 1 : 0));
    if (offset == 0 && kept == 0) absl::ConsumePrefix(&window, kByteOrderMark);
    LineFinder finder(format, window);
    while (const auto line = finder.Next()) {
      RETURN_IF_ERROR(take_line(*line));
      window.remove_prefix(line->size());
    }
    if (is_last && window.empty()) return absl::OkStatus();
    if (is_last) return damaged(window.data(), "a quote is not closed");
    if (std::ssize(window) > kCsvLineBytesMax) return too_long(window.data());
    offset += window.data() - buffer.data();
    kept = window.size();
    std::memmove(buffer.data(), window.data(), kept);
  }
}

absl::string_view CsvSplitter::Split(absl::string_view line, const CsvFormat& format) {
  fields_.clear();
  const char* begin = line.data();
  const char* const end = begin + line.size();
  if (format.has_quotes && !line.empty() && Find(begin, end, '"') != nullptr) {
    return SplitQuoted(line, format.separator);
  }
  // Compares eight bytes at once: fields are short, so memchr() would mostly be overhead.
  const uint64_t pattern = 0x0101010101010101 * static_cast<unsigned char>(format.separator);
  const char* at = begin;
  for (; at + 8 <= end; at += 8) {
    uint64_t bytes;
    std::memcpy(&bytes, at, sizeof(bytes));
    bytes ^= pattern;
    // Sets the highest bit of each byte that is zero, and of no other byte.
    constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7f;
    uint64_t found = ~(((bytes & kLow) + kLow) | bytes | kLow);
    for (; found != 0; found &= found - 1) {
      const char* separator = at + std::countr_zero(found) / 8;
      fields_.emplace_back(begin, separator - begin);
      begin = separator + 1;
    }
  }
  for (; at < end; ++at) {
    if (*at != format.separator) continue;
    fields_.emplace_back(begin, at - begin);
    begin = at + 1;
  }
  fields_.emplace_back(begin, end - begin);
  return "";
}

absl::string_view CsvSplitter::SplitQuoted(absl::string_view line, char separator) {
  unquoted_.clear();
  unquoted_.reserve(line.size());  // so that fields stay where they are
  while (true) {
    if (!absl::ConsumePrefix(&line, "\"")) {
      const size_t end = std::min(line.find(separator), line.size());
      fields_.push_back(line.substr(0, end));
      line.remove_prefix(end);
    } else {
      const size_t begin = unquoted_.size();
      while (true) {
        const size_t quote = line.find('"');
        if (quote == absl::string_view::npos) return "a quote is not closed";
        unquoted_.append(line.data(), quote);
        line.remove_prefix(quote + 1);
        if (!absl::ConsumePrefix(&line, "\"")) break;
        unquoted_.push_back('"');
      }
      fields_.emplace_back(unquoted_.data() + begin, unquoted_.size() - begin);
      if (!line.empty() && line[0] != separator) return "text follows a closing quote";
    }
    if (line.empty()) return "";
    line.remove_prefix(1);
  }
}

std::optional<double> ParseCsvNumber(absl::string_view text) {
  if (text.empty()) return std::nullopt;
  if (const std::optional<double> value = ParseShortNumber(text)) return value;
  text = absl::StripAsciiWhitespace(text);
  if (absl::ConsumePrefix(&text, "+") && absl::StartsWith(text, "-")) return std::nullopt;
  // from_chars() also reads hexadecimal numbers.
  if (text.find_first_of("xX") != absl::string_view::npos) return std::nullopt;
  double value = 0;
  const auto [end, fault] = absl::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_tiny = fault == std::errc::result_out_of_range && std::abs(value) < 1;
  if (text.empty() || end != text.data() + text.size()) return std::nullopt;
  if ((fault != std::errc() && !is_tiny) || !std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace muster
