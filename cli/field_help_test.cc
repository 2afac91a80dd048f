#include "cli/field_help.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli::field_help_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Explained(const std::string& path) {
  const auto text = ExplainField(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

TEST(FieldHelpTest, ExplainsAFieldByItsCommentInTheProto) {
  EXPECT_EQ(Explained("training.optimizer.adamw.learning_rate"),
            "training.optimizer.adamw.learning_rate  (number)\n"
            "  required, > 0\n");
  EXPECT_THAT(Explained("active_deadline"),
              AllOf(HasSubstr("active_deadline  (time)\n  The job fails (reason"),
                    HasSubstr("Default: none; 1 s..1,000 days.\n")));
}

TEST(FieldHelpTest, ValuesAreWrittenAsInAJobFile) {
  EXPECT_THAT(Explained("sync.mode"),
              AllOf(HasSubstr("default bsp\nValues\n  bsp\n      every worker's gradient"),
                    HasSubstr("  local_sgd\n")));
  EXPECT_THAT(Explained("sync.compression.kind"), HasSubstr("  int8\n      a scale per block"));
}

TEST(FieldHelpTest, AnObjectListsItsFields) {
  EXPECT_THAT(
      Explained("checkpoint"),
      AllOf(HasSubstr("checkpoint  (object)\n  default: every 5 minutes, after each tenth of the "
                      "steps, and at the end\nFields\n"),
            HasSubstr("  every_steps  (whole number)\n      Steps between checkpoints."),
            HasSubstr("  keep_last  (whole number)\n")));
  EXPECT_THAT(Explained("training.optimizer"), HasSubstr("  sgd  (object; one kind)\n"));
  EXPECT_THAT(Explained(""),
              AllOf(HasSubstr("  labels  (map of texts)\n"), HasSubstr("  name  (")));
  EXPECT_THAT(Explained("training.parameter_groups[1].match"), HasSubstr("list of texts"));
  EXPECT_THAT(Explained("labels.team"), HasSubstr("as in Kubernetes"));
}

TEST(FieldHelpTest, AnUnknownFieldIsAnErrorWithTheNearestName) {
  EXPECT_EQ(ExplainField("training.step").status().message(),
            "training has no field 'step'; did you mean 'steps'?");
  EXPECT_EQ(ExplainField("name.x").status().message(), "name is text and has no field 'x'");
}

// Returns whether a field of this type below `path` begins the same fields again: the parts of a
// mixture are data.
bool IsRepetition(const google::protobuf::Descriptor* type, absl::string_view path) {
  return type == v1::DataSpec::descriptor() && absl::StrContains(path, "mixture");
}

void Visit(const google::protobuf::Descriptor& message, const std::string& path, int& fields) {
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    const std::string name = path.empty() ? field.name() : absl::StrCat(path, ".", field.name());
    SCOPED_TRACE(name);
    const std::string text = Explained(name);
    for (const absl::string_view line : absl::StrSplit(text, '\n'))
      EXPECT_LE(line.size(), 80) << line;
    ++fields;
    const auto* inner = field.message_type();
    if (IsRepetition(inner, path)) continue;
    if (inner != nullptr && inner->file() == message.file()) Visit(*inner, name, fields);
  }
}

TEST(FieldHelpTest, EveryFieldFitsTheScreen) {
  int fields = 0;
  Visit(*v1::JobSpec::descriptor(), "", fields);
  EXPECT_GT(fields, 100);
}

void AddPaths(const google::protobuf::Descriptor& message, const std::string& path,
              std::vector<std::string>& paths) {
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    paths.push_back(path.empty() ? field.name() : absl::StrCat(path, ".", field.name()));
    const auto* inner = field.message_type();
    if (field.is_map()) continue;  // users choose the keys
    if (inner == nullptr || inner->file() != message.file() || IsRepetition(inner, path)) continue;
    AddPaths(*inner, std::string(paths.back()),
             paths);  // a copy, because `paths` moves its elements
  }
}

std::string JobSpecPage() {
  std::ifstream file("docs/job_spec.md");
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

TEST(FieldHelpTest, JobSpecPageNamesEveryField) {
  const std::string page = JobSpecPage();
  ASSERT_GT(page.size(), 20'000) << "the page was not found";
  static const std::regex kCode("```[^`]*```|`[^`\n]+`");
  static const std::regex kWord("[a-z][a-z0-9_]*");
  std::set<std::string> words;
  for (std::sregex_iterator code(page.begin(), page.end(), kCode), end; code != end; ++code) {
    const std::string text = code->str();
    for (std::sregex_iterator word(text.begin(), text.end(), kWord); word != end; ++word) {
      words.insert(word->str());
    }
  }
  std::vector<std::string> paths;
  AddPaths(*v1::JobSpec::descriptor(), "", paths);
  for (const std::string& path : paths) {
    EXPECT_TRUE(words.contains(path.substr(path.rfind('.') + 1)))
        << "docs/job_spec.md does not name " << path;
  }
}

TEST(FieldHelpTest, JobSpecPageNamesOnlyExistingFields) {
  std::vector<std::string> paths;
  AddPaths(*v1::JobSpec::descriptor(), "", paths);
  // The first cells of tables whose first column is headed "field".
  static const std::regex kTable("\n\\| field \\|[^\n]*\n[^\n]*((?:\n\\|[^\n]*)+)");
  static const std::regex kRow("\n\\|([^|]*)\\|");
  static const std::regex kField("`([^`]+)`");
  const std::string page = JobSpecPage();
  int fields = 0;
  for (std::sregex_iterator table(page.begin(), page.end(), kTable), end; table != end; ++table) {
    const std::string rows = (*table)[1];
    for (std::sregex_iterator row(rows.begin(), rows.end(), kRow); row != end; ++row) {
      const std::string cell = (*row)[1];
      for (std::sregex_iterator it(cell.begin(), cell.end(), kField); it != end; ++it, ++fields) {
        const std::string field = (*it)[1];
        const bool is_there = std::ranges::any_of(paths, [&](const std::string& path) {
          return path == field || absl::EndsWith(path, "." + field);
        });
        EXPECT_TRUE(is_there) << "docs/job_spec.md explains " << field;
      }
    }
  }
  EXPECT_GT(fields, 60);
}

}  // namespace
}  // namespace muster::cli::field_help_test
