#include "lib/data/format/csv.h"

#include <clocale>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::csv_test {
namespace {

using ::testing::ElementsAre;

using Lines = std::vector<std::pair<int64_t, std::string>>;

absl::StatusOr<Lines> Scan(const std::string& content, const CsvFormat& format = {}) {
  const std::string path = absl::StrCat(testing::TempDir(), "/x.csv");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, "data.csv.path"));
  Lines lines;
  RETURN_IF_ERROR(
      ScanCsv(*file, format, "data.csv.path", [&](int64_t offset, absl::string_view line) {
        lines.emplace_back(offset, std::string(line));
        return absl::OkStatus();
      }));
  return lines;
}

TEST(CsvTest, FindsLinesWithAnyEnd) {
  EXPECT_EQ(Scan("a,b\n1,2\n").value(), (Lines{{0, "a,b"}, {4, "1,2"}}));
  EXPECT_EQ(Scan("a,b\r\n1,2").value(), (Lines{{0, "a,b"}, {5, "1,2"}}));
  EXPECT_EQ(Scan("\xef\xbb\xbf"
                 "a\n\n\r\nb\n\n")
                .value(),
            (Lines{{3, "a"}, {8, "b"}}));
  EXPECT_EQ(Scan("\n").value(), Lines{});
}

TEST(CsvTest, QuotedFieldsMayHaveEndsOfLines) {
  EXPECT_EQ(Scan("a,\"b\nc\"\nd\n").value(), (Lines{{0, "a,\"b\nc\""}, {8, "d"}}));
  EXPECT_EQ(Scan("\"\"\"\n\",b\nd").value(), (Lines{{0, "\"\"\"\n\",b"}, {8, "d"}}));
  EXPECT_EQ(Scan("5\" disk\nb\n").value(), (Lines{{0, "5\" disk"}, {8, "b"}}))
      << "a quote within a field is text";
  EXPECT_EQ(Scan("\"a\nb\n", {.has_quotes = false}).value(), (Lines{{0, "\"a"}, {3, "b"}}));
  const absl::Status open = Scan("a\nb,\"c\nd\n").status();
  EXPECT_EQ(ReasonOf(open), "DATA_DAMAGED");
  EXPECT_EQ(open.message(), absl::StrCat("data.csv.path: ", testing::TempDir(),
                                         "/x.csv: record 1 at byte 2: a quote is not closed"));
  const absl::Status of_header = Scan("\"a\nb\n", {.has_header = true}).status();
  EXPECT_EQ(of_header.message(), absl::StrCat("data.csv.path: ", testing::TempDir(),
                                              "/x.csv: at byte 0: a quote is not closed"));
}

TEST(CsvTest, LinesMayBeLongerThanAReadButNotEndless) {
  const std::string middle(3 << 20, 'x');
  const Lines lines = Scan(absl::StrCat("a\n", middle, "\nb\n\"", middle, "\n\"\nc")).value();
  ASSERT_EQ(lines.size(), 5);
  EXPECT_EQ(lines[1].second, middle);
  EXPECT_EQ(lines[3].second.size(), middle.size() + 3);
  EXPECT_EQ(lines[4], std::make_pair(int64_t{9} + 2 * (3 << 20), std::string("c")));
  const std::string endless(kCsvLineBytesMax * 3, 'x');
  const absl::Status status = Scan(absl::StrCat(endless, "\n")).status();
  EXPECT_TRUE(absl::StrContains(status.message(), "a line of more than 16777216 bytes")) << status;
}

// Compares with a scan of one byte at a time.
TEST(CsvTest, FindsTheLinesOfRandomText) {
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string text = "a";
    for (int n = random() % 60; n > 0; --n) text += "a,\"\n"[random() % 4];
    Lines expected;
    std::string line;
    bool quoted = false, at_start = true, after_quote = false;
    size_t begin = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      const char c = text[at];
      if (!quoted && c == '\n') {
        if (!line.empty()) expected.emplace_back(begin, line);
        line.clear();
        begin = at + 1;
        at_start = true;
        after_quote = false;
        continue;
      }
      line += c;
      if (quoted) {
        if (c == '"') quoted = false, after_quote = true;
        continue;
      }
      if (c == '"' && (at_start || after_quote)) quoted = true;
      after_quote = false;
      at_start = c == ',';
    }
    if (!line.empty()) expected.emplace_back(begin, line);
    const auto found = Scan(text);
    if (quoted) {
      EXPECT_FALSE(found.ok()) << text;
    } else {
      EXPECT_EQ(found.value(), expected) << text;
    }
  }
}

TEST(CsvTest, SplitsFields) {
  CsvSplitter splitter;
  const CsvFormat commas;
  EXPECT_EQ(splitter.Split("1,,abcdefghij,x", commas), "");
  EXPECT_THAT(splitter.fields(), ElementsAre("1", "", "abcdefghij", "x"));
  EXPECT_EQ(splitter.Split("a,", commas), "");
  EXPECT_THAT(splitter.fields(), ElementsAre("a", ""));
  EXPECT_EQ(splitter.Split(",,,,,,,,,", commas), "");
  EXPECT_EQ(splitter.fields().size(), 10);
  EXPECT_EQ(splitter.Split("\xac,\xab\x2c\x80", commas), "");
  EXPECT_THAT(splitter.fields(), ElementsAre("\xac", "\xab", "\x80"));
  EXPECT_EQ(splitter.Split("\"a,\"\"b\",5\" disk,\"\"", commas), "");
  EXPECT_THAT(splitter.fields(), ElementsAre("a,\"b", "5\" disk", ""));
  EXPECT_EQ(splitter.Split("\"a\"b,c", commas), "text follows a closing quote");
  EXPECT_EQ(splitter.Split("a,\"b", commas), "a quote is not closed");
  const CsvFormat tabs = {.separator = '\t', .has_quotes = false};
  EXPECT_EQ(splitter.Split("\"a\tb,c", tabs), "");
  EXPECT_THAT(splitter.fields(), ElementsAre("\"a", "b,c"));
}

TEST(CsvTest, ParsesNumbersInEveryLocale) {
  std::setlocale(LC_ALL, "de_DE.UTF-8");
  EXPECT_EQ(ParseCsvNumber("1.5"), 1.5);
  EXPECT_EQ(ParseCsvNumber("-12"), -12.0);
  EXPECT_EQ(ParseCsvNumber(" 7 "), 7.0);
  EXPECT_EQ(ParseCsvNumber("+1e-3"), 0.001);
  EXPECT_EQ(ParseCsvNumber("123456789012345678"), 123456789012345678.0);
  for (const char* text :
       {"", "-", ".", "1.2.3", "1,5", "abc", "nan", "inf", "1e999", "0x10", "1 2", "+-1"}) {
    EXPECT_EQ(ParseCsvNumber(text), std::nullopt) << text;
  }
}

TEST(CsvTest, RoundsNumbersAsTheLibraryDoes) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = absl::StrCat(random() % 1'000'000'000, ".", random() % 1'000'000);
    text.resize(1 + random() % text.size());
    double expected = 0;
    ASSERT_TRUE(absl::SimpleAtod(text, &expected));
    EXPECT_EQ(ParseCsvNumber(text), expected) << text;
  }
}

}  // namespace
}  // namespace muster::csv_test
