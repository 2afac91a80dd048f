// docs/operations/reasons.md explains every reason that the programs can give, and no other; and
// docs/reference/errors.md is its index.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "docs/reference_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::operations_test {
namespace {

namespace fs = std::filesystem;

constexpr char kPage[] = "docs/operations/reasons.md";

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Words in capitals that are no reasons: environment variables, settings and formats of others,
// placeholders of the command line's help.
bool IsSomethingElse(const std::string& word) {
  static const std::set<std::string> kOthers = {
      "NO_COLOR",   "OMP_NUM_THREADS", "F8_E4M3",     "F8_E5M2",     "F_ADD_SEALS",
      "CONN_NB",    "RNDV_THRESH",     "RX_SEG_SIZE", "TX_SEG_SIZE", "SAME_UPPER",
      "SAME_LOWER", "VC_TASK_INDEX",   "JOB_FILE",    "PATH_OR_NAME"};
  return kOthers.contains(word) || absl::StartsWith(word, "MUSTER_") ||
         absl::StartsWith(word, "LC_") || absl::StartsWith(word, "XDG_") ||
         absl::StartsWith(word, "TEST_") || absl::StartsWith(word, "UCX_") ||
         absl::StartsWith(word, "CUDA_") || absl::StartsWith(word, "CUDNN_") ||
         absl::StartsWith(word, "NCCL_") || absl::StartsWith(word, "SO_") ||
         absl::StartsWith(word, "TCP_") || absl::StartsWith(word, "TLS_");
}

// What stands between the parenthesis at `open` and the one that closes it.
std::string Arguments(const std::string& code, size_t open) {
  int depth = 0;
  for (size_t i = open; i < code.size(); ++i) {
    if (code[i] == '(') ++depth;
    if (code[i] == ')' && --depth == 0) return code.substr(open, i - open);
  }
  return code.substr(open);
}

using Places = std::map<std::string, std::string>;  // reason to a file that gives it

void AddWords(const std::string& code, const std::regex& literal, const std::string& file,
              Places& reasons) {
  for (std::sregex_iterator it(code.begin(), code.end(), literal), end; it != end; ++it) {
    if (!IsSomethingElse((*it)[1])) reasons.emplace((*it)[1], file);
  }
}

// Every literal that is nothing but words in capitals joined by underscores, and single words
// ("REPLACED") where a reason is expected.
void AddReasonsOf(const std::string& file, std::string code, Places& reasons) {
  static const std::regex kComment("//[^\n]*");
  static const std::regex kSeveralWords("\"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\"");
  static const std::regex kWord("\"([A-Z][A-Z0-9_]{2,})\"");
  static const std::regex kNamedField("\\.reason = \"([A-Z][A-Z0-9_]{2,})\"");
  static const std::regex kGivers(
      "\\b(?:WithReason|FaultsToStatus|Precondition|set_reason|Fail|Move|Note)\\(");
  code = std::regex_replace(code, kComment, "");
  AddWords(code, kSeveralWords, file, reasons);
  AddWords(code, kNamedField, file, reasons);
  for (std::sregex_iterator it(code.begin(), code.end(), kGivers), end; it != end; ++it) {
    AddWords(Arguments(code, it->position() + it->length() - 1), kWord, file, reasons);
  }
}

Places ReadReasonsInTheCode() {
  Places reasons;
  for (const char* folder : {"lib", "services", "cli", "kernels"}) {
    for (const auto& entry : fs::recursive_directory_iterator(
             folder, fs::directory_options::follow_directory_symlink)) {
      if (!entry.is_regular_file()) continue;
      AddReasonsOf(entry.path().string(), ReadAll(entry.path()), reasons);
    }
  }
  return reasons;
}

const Places& ReasonsInTheCode() {
  static const Places kReasons = ReadReasonsInTheCode();
  return kReasons;
}

// The first cells of the tables' rows.
std::set<std::string> ReasonsInTheDocument() {
  static const std::regex kRow("\n\\| ((?:`[A-Z][A-Z0-9_]+`(?:, )?)+) \\|");
  static const std::regex kCell("`([A-Z0-9_]+)`");
  const std::string text = ReadAll(kPage);
  std::set<std::string> reasons;
  for (std::sregex_iterator row(text.begin(), text.end(), kRow), end; row != end; ++row) {
    const std::string cells = (*row)[1];
    for (std::sregex_iterator cell(cells.begin(), cells.end(), kCell); cell != end; ++cell) {
      EXPECT_TRUE(reasons.insert((*cell)[1]).second) << (*cell)[1] << " has two rows";
    }
  }
  return reasons;
}

std::set<std::string> CanonicalCodes() {
  std::set<std::string> codes;
  for (int code = 1; code <= 16; ++code) {
    codes.insert(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
  }
  return codes;
}

TEST(OperationsTest, EveryReasonThatTheProgramsGiveIsExplained) {
  const Places& code = ReasonsInTheCode();
  const std::set<std::string> document = ReasonsInTheDocument();
  ASSERT_GE(code.size(), 60) << "the sources were not found";
  for (const auto& [reason, file] : code) {
    EXPECT_TRUE(document.contains(reason))
        << file << " says \"" << reason << "\": give it a row in " << kPage << ", or, if it is "
        << "no reason, name it in IsSomethingElse()";
  }
}

TEST(OperationsTest, EveryReasonThatIsExplainedCanBeGiven) {
  const Places& code = ReasonsInTheCode();
  const std::set<std::string> canonical = CanonicalCodes();
  for (const std::string& reason : ReasonsInTheDocument()) {
    EXPECT_TRUE(code.contains(reason) || canonical.contains(reason))
        << kPage << " explains " << reason << ", which no program says";
  }
}

TEST(OperationsTest, EveryCanonicalCodeIsExplained) {
  const std::set<std::string> document = ReasonsInTheDocument();
  for (const std::string& code : CanonicalCodes()) EXPECT_TRUE(document.contains(code)) << code;
}

// Returns for each reason the heading of the page above its row.
std::map<std::string, std::string> HeadingsOfReasons() {
  static const std::regex kHeadingOrRow("\n#+ ([^\n]+)|\n\\| ((?:`[A-Z][A-Z0-9_]+`(?:, )?)+) \\|");
  static const std::regex kCell("`([A-Z0-9_]+)`");
  const std::string text = ReadAll(kPage);
  std::map<std::string, std::string> headings;
  std::string heading;
  for (std::sregex_iterator it(text.begin(), text.end(), kHeadingOrRow), end; it != end; ++it) {
    if ((*it)[1].matched) heading = (*it)[1];
    const std::string cells = (*it)[2];
    for (std::sregex_iterator cell(cells.begin(), cells.end(), kCell); cell != end; ++cell) {
      headings[(*cell)[1]] = heading;
    }
  }
  return headings;
}

// As browsers address a heading.
std::string Anchor(const std::string& heading) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(heading), {{" ", "-"}, {":", ""}});
}

TEST(OperationsTest, TheIndexHasEveryReason) {
  std::string page =
      "# Errors\n\n"
      "Every reason in the order of the alphabet, with the part of "
      "[reasons.md](../operations/reasons.md)"
      " that says what it means and what to do.\n"
      "A reason comes in the brackets at the end of a message of `muster` (`[JOB_NOT_FOUND]`), in "
      "the `google.rpc.ErrorInfo` of a call, in a job's `reason` and in its events.\n"
      "Exit codes: [troubleshooting.md](../operations/troubleshooting.md#exit-codes). Made by "
      "`//docs:operations_test`.\n\n| reason | explained under |\n|---|---|\n";
  for (const auto& [reason, heading] : HeadingsOfReasons()) {
    absl::StrAppend(&page, "| `", reason, "` | [", heading, "](../operations/reasons.md#",
                    Anchor(heading), ") |\n");
  }
  ExpectReferencePage("errors.md", page, "//docs:operations_test");
}

}  // namespace
}  // namespace muster::operations_test
