#include "cli/field_help.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Explained(const std::string& path) {
  const auto text = ExplainField(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

TEST(FieldHelpTest, AFieldIsExplainedByTheCommentOfTheProto) {
  EXPECT_EQ(Explained("training.optimizer.adamw.learning_rate"),
            "training.optimizer.adamw.learning_rate  (number)\n"
            "  required, > 0\n");
  EXPECT_THAT(Explained("active_deadline"),
              AllOf(HasSubstr("active_deadline  (time)\n  The job fails (reason"),
                    HasSubstr("Default: none; 1\n  s..1,000 days.\n")));
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
      AllOf(HasSubstr("checkpoint  (object)\n  default: one checkpoint, at the end\nFields\n"
                      "  every_steps  (whole number)\n      0: only at the end\n"),
            HasSubstr("  keep_last  (whole number)\n")));
  EXPECT_THAT(Explained("training.optimizer"), HasSubstr("  sgd  (object; one kind)\n"));
  EXPECT_THAT(Explained(""),
              AllOf(HasSubstr("  labels  (map of texts)\n"), HasSubstr("  name  (")));
  EXPECT_THAT(Explained("training.parameter_groups[1].match"), HasSubstr("list of texts"));
  EXPECT_THAT(Explained("labels.team"), HasSubstr("as in Kubernetes"));
}

TEST(FieldHelpTest, WhatIsNotThereIsNamedWithTheNearest) {
  EXPECT_EQ(ExplainField("training.step").status().message(),
            "training has no field 'step'; did you mean 'steps'?");
  EXPECT_EQ(ExplainField("name.x").status().message(), "name is text and has no field 'x'");
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
    if (inner != nullptr && inner->file() == message.file()) Visit(*inner, name, fields);
  }
}

TEST(FieldHelpTest, EveryFieldFitsTheScreen) {
  int fields = 0;
  Visit(*v1::JobSpec::descriptor(), "", fields);
  EXPECT_GT(fields, 100);
}

}  // namespace
}  // namespace muster::cli
