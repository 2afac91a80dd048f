#include "cli/local/job_check.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/safetensors.h"
#include "lib/job/job_validation.h"
#include "lib/status/field_fault.h"

namespace muster::cli::job_check_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::vector<std::string> YamlFiles(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".yaml") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::Status Check(const std::string& file, const JobOverrides& overrides = {}) {
  const absl::StatusOr<std::string> text = ReadJobFile(file);
  if (!text.ok()) return text.status();
  return CheckJobFile(*text, file, overrides).status();
}

TEST(JobCheckTest, EveryFaultyJobHasOneFaultWithItsLineAndField) {
  const std::vector<std::string> files = YamlFiles("tests/faulty_jobs");
  EXPECT_GE(files.size(), 40);
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const std::string text = *ReadJobFile(file);
    const std::vector<std::string> expected =
        absl::StrSplit(text.substr(0, text.find('\n')), absl::MaxSplits(": ", 2));
    ASSERT_EQ(expected.size(), 3) << "the first line is '# expect: FIELD: PART OF THE MESSAGE'";

    const absl::Status status = Check(file);

    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file + ":"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected[1]));
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected[2]));
    EXPECT_EQ(FaultsOf(status).size(), 1) << status;
  }
}

TEST(JobCheckTest, ExamplesHaveNoFaults) {
  const std::vector<std::string> files = YamlFiles("examples");
  EXPECT_GE(files.size(), 15);
  for (const std::string& file : files) {
    EXPECT_EQ(Check(file), absl::OkStatus()) << file;
  }
}

TEST(JobCheckTest, ExamplesSurviveARoundTripThroughYaml) {
  for (const std::string& file : YamlFiles("examples")) {
    SCOPED_TRACE(file);
    v1::JobSpec spec = *ParseJobFile(*ReadJobFile(file), file);
    FillDefaults(spec);  // as a coordinator does
    const std::string text = ToYaml(spec);

    const auto again = CheckJobFile(text, "again.yaml", {});

    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(again->spec, spec)) << text;
  }
}

TEST(JobCheckTest, FaultsOfModelAndDataNameTheLine) {
  const std::string job =
      "name: a\n"
      "model:\n"
      "  zoo: {name: gpt, args: {heads: 3, context: 8,\n"
      "    channels: 8}}\n"
      "data: {text: {path: /no/such/folder}, batch_size: 2}\n"
      "training: {steps: 5, optimizer: {sgd: {learning_rate: 0.1}}}\n";

  EXPECT_THAT(std::string(CheckJobFile(job, "a.yaml", {}).status().message()),
              HasSubstr("a.yaml:3: model.zoo.args.heads: "));
  EXPECT_THAT(
      std::string(CheckJobFile(job, "a.yaml", {{"model.zoo.args.heads", "2"}}).status().message()),
      HasSubstr("a.yaml:5: data.text.path: /no/such/folder"));
}

TEST(JobCheckTest, ABatchLargerThanTheDataIsAFault) {
  EXPECT_THAT(std::string(Check("examples/linear.yaml", {{"data.linear.samples", "32"}}).message()),
              HasSubstr("data.batch_size: must be at most"));
  EXPECT_THAT(
      std::string(Check("examples/char_gpt.yaml", {{"data.batch_size", "1048576"},
                                                   {"data.text.path", "examples/char_gpt.yaml"}})
                      .message()),
      HasSubstr("training samples"));
}

TEST(JobCheckTest, AJobWithAnExternalModelIsValid) {
  const std::string folder = ::testing::TempDir();
  SafetensorsHeader header{.tensors = {{.name = "w", .shape = {2, 3}}, {.name = "b", .shape = {}}}};
  std::string model = EncodeSafetensorsHeader(header);
  model.resize(header.file_bytes);
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << model;
  const std::string text =
      absl::StrCat("name: torch\n", "model: {external: {path: ", folder, "/model.safetensors}}\n",
                   "data: {external: {}, batch_size: 8}\n",
                   "program: {command: [python3, train.py], processes: 2}\n", "training:\n",
                   "  steps: 10\n", "  optimizer: {adamw: {learning_rate: 0.1}}\n",
                   "  parameter_groups: [{match: [b], decay: 0}]\n");

  const auto checked = CheckJobFile(text, "torch.yaml", {});

  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->memory_warning, "");
  EXPECT_EQ(checked->spec.program().command_size(), 2);
  const auto no_such_group =
      CheckJobFile(text, "torch.yaml", {{"training.parameter_groups", "[{match: [c], decay: 0}]"}});
  EXPECT_THAT(std::string(no_such_group.status().message()),
              HasSubstr("no parameter matches 'c'; the model has: w, b"));
}

// Synthetic samples are computed when they are read, so their number costs no memory.
TEST(JobCheckTest, WarnsIfAWorkerCannotHaveTheMemoryItNeeds) {
  const std::string text = *ReadJobFile("examples/resnet50.yaml");
  const auto large_batch = [&](const std::string& workers) {
    return CheckJobFile(text, "resnet50.yaml",
                        {{"data.synthetic.samples", "1048576"},
                         {"data.batch_size", "1048576"},
                         {"resources.workers", workers}});
  };

  const auto small = CheckJobFile(text, "resnet50.yaml", {{"data.batch_size", "4"}});
  const auto large = large_batch("{min: 1, max: 2}"), cut = large_batch("{max: 2, logical: 4}");

  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->memory_warning, "");
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_THAT(large->memory_warning,
              ContainsRegex("data.batch_size: a worker on the CPU needs [.0-9]+ TiB .* for 524288 "
                            "samples at a time.* left. Set training.micro_batch_size"));
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_THAT(
      cut->memory_warning,
      ContainsRegex("for 262144 samples at a time.* left. Raise resources.workers.logical"));
}

TEST(JobCheckTest, ParsesOverridesIntoFieldAndValue) {
  EXPECT_EQ(*ParseOverrides({"a.b=c", "d=e=f", "g="}),
            (JobOverrides{{"a.b", "c"}, {"d", "e=f"}, {"g", ""}}));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseOverrides({"a.b"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ParseOverrides({"=b"}).status()));
}

TEST(JobCheckTest, AJobFileThatCannotBeReadIsAnInvalidArgument) {
  EXPECT_TRUE(absl::IsInvalidArgument(ReadJobFile("/no/such/file").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadJobFile("/").status()));
}

}  // namespace
}  // namespace muster::cli::job_check_test
