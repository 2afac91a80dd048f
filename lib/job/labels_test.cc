#include "lib/job/labels.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/status/status.h"

namespace muster::labels_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

LabelMap Labels(const std::vector<std::pair<std::string, std::string>>& entries) {
  LabelMap labels;
  for (const auto& [key, value] : entries) labels[key] = value;
  return labels;
}

std::vector<std::string> FaultyFields(const LabelMap& labels) {
  FieldChecks checks;
  CheckLabels("labels", labels, checks);
  std::vector<std::string> fields;
  for (const FieldFault& fault : std::move(checks).Take()) fields.push_back(fault.field);
  return fields;
}

TEST(LabelsTest, KubernetesRulesHoldForKeysAndValues) {
  const std::string longest(63, 'a');
  EXPECT_THAT(FaultyFields(Labels({{"team", "vision"},
                                   {"example.com/Cost-Center_2", "A.b-c_9"},
                                   {"empty", ""},
                                   {longest, longest}})),
              IsEmpty());
  const std::string too_long(64, 'a');
  const std::vector<std::string> wrong_keys = {
      "", "-a", "a-", "a b", "/a", "Example.com/a", "a/b/c", "a..b/c", "\xc3\xa4", too_long};
  for (const std::string& key : wrong_keys) {
    EXPECT_THAT(FaultyFields(Labels({{key, "x"}})), ElementsAre("labels")) << key;
  }
  const std::vector<std::string> wrong_values = {"-a", "a.", "a b", "a/b", too_long};
  for (const std::string& value : wrong_values) {
    EXPECT_THAT(FaultyFields(Labels({{"team", value}})), ElementsAre("labels.team")) << value;
  }
}

TEST(LabelsTest, LimitsTheNumberOfLabelsAndTheSizeOfAnnotations) {
  LabelMap many;
  for (int i = 0; i < 65; ++i) many["k" + std::to_string(i)] = "v";
  EXPECT_THAT(FaultyFields(many), ElementsAre("labels"));
  many.erase("k0");
  EXPECT_THAT(FaultyFields(many), IsEmpty());

  FieldChecks checks;
  CheckAnnotations("annotations", Labels({{"note", "anything goes: /!\n"}}), checks);
  CheckAnnotations("big", Labels({{"note", std::string(64 << 10, 'x')}}), checks);
  CheckAnnotations("key", Labels({{"no te", ""}}), checks);
  const auto faults = std::move(checks).Take();
  ASSERT_EQ(faults.size(), 2);
  EXPECT_EQ(faults[0].field, "big");
  EXPECT_EQ(faults[1].field, "key");
}

TEST(LabelSelectorTest, EveryRequirementMustHold) {
  const LabelMap labels = Labels({{"team", "vision"}, {"env", "prod"}, {"example.com/gpu", ""}});
  for (const char* text :
       {"", "  ", "team=vision", "team == vision", "team!=audio", "absent!=x", "env", "!absent",
        "env in (dev, prod)", "env notin (dev)", "absent notin (a,b)", "example.com/gpu",
        "example.com/gpu=", "team=vision,env in (prod,dev), !absent"}) {
    const auto selector = LabelSelector::Parse(text);
    ASSERT_TRUE(selector.ok()) << text << ": " << selector.status();
    EXPECT_TRUE(selector->Matches(labels)) << text;
  }
  for (const char* text : {"team=audio", "team!=vision", "absent", "!env", "absent=x",
                           "env in (dev)", "env notin (dev,prod)", "team=vision,env=dev"}) {
    const auto selector = LabelSelector::Parse(text);
    ASSERT_TRUE(selector.ok()) << text << ": " << selector.status();
    EXPECT_FALSE(selector->Matches(labels)) << text;
  }
}

TEST(LabelSelectorTest, ParseErrorsShowTheGrammar) {
  std::string many = "!a";
  for (int i = 1; i < LabelSelector::kRequirementsMax; ++i) many += ",!a";
  EXPECT_TRUE(LabelSelector::Parse(many).ok());
  EXPECT_FALSE(LabelSelector::Parse(many + ",!a").ok());
  for (const char* text : {",", "team=a b", "=x", "team~x", "env in dev", "env in (dev", "!a=b",
                           "team=vision,,env=prod", "a/b/c=d"}) {
    const auto selector = LabelSelector::Parse(text);
    ASSERT_FALSE(selector.ok()) << text;
    EXPECT_EQ(ReasonOf(selector.status()), "INVALID_REQUEST") << text;
    EXPECT_THAT(std::string(selector.status().message()), HasSubstr("KEY=VALUE")) << text;
  }
  EXPECT_FALSE(LabelSelector::Parse(std::string(5000, 'a')).ok());
}

}  // namespace
}  // namespace muster::labels_test
