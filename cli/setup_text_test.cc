// Tests of job templates, contexts and the report of `muster doctor`.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "cli/contexts.h"
#include "cli/doctor.h"
#include "cli/job_template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/graph/onnx/onnx_model_builder.h"
#include "lib/job/job_file.h"
#include "lib/job/job_validation.h"
#include "lib/transport/routing/routing_transport.h"

namespace muster::cli::setup_text_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(JobTemplateTest, EveryModelHasAJobFileWithoutAFault) {
  const std::vector<std::string> models = TemplateModels();
  EXPECT_GE(models.size(), 14);
  for (const std::string& model : models) {
    SCOPED_TRACE(model);
    const auto text = JobTemplate(model, "job.yaml");
    ASSERT_TRUE(text.ok()) << text.status();
    const auto spec = ParseJobFile(*text, "job.yaml");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->model().zoo().name(), model);
    EXPECT_EQ(spec->resources().workers().logical(), 4);
    const auto faults = ValidateJobSpec(*spec);
    EXPECT_THAT(faults, IsEmpty()) << faults[0].field << ": " << faults[0].description;
  }
  EXPECT_THAT(std::string(JobTemplate("resnet5", "job.yaml").status().message()),
              HasSubstr("did you mean 'resnet50'?"));
}

TEST(JobTemplateTest, AnOnnxFileHasAJobFileWithItsOwnNames) {
  const auto text = OnnxJobTemplate("tests/goldens/onnx/transformer.onnx", "job.yaml");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, AllOf(HasSubstr("muster validate job.yaml"), HasSubstr("\nname: transformer "),
                           HasSubstr("    logits: logits              # f32[B, 12, 30], "),
                           HasSubstr("  #     input: input.npy        # i32[B, 12], 0 to 29\n")));
  const auto spec = ParseJobFile(*text, "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().onnx().path(), "tests/goldens/onnx/transformer.onnx");
  EXPECT_EQ(spec->model().onnx().loss(), "softmax_cross_entropy");
  EXPECT_EQ(spec->model().onnx().labels(), "target");
  EXPECT_THAT(ValidateJobSpec(*spec), IsEmpty());
  EXPECT_FALSE(OnnxJobTemplate("/no/such/file.onnx", "job.yaml").ok());
}

// Returns the job file for a model with the output y = x w and the outputs that `add` adds.
std::string JobTextOf(const std::string& name, std::vector<int64_t> weight,
                      const std::function<void(OnnxModelBuilder&)>& add) {
  OnnxModelBuilder model;
  model.Input("x:0", {0, 3}).Weight("w", std::move(weight));
  model.Node("MatMul", {"x:0", "w"}, {"y"});
  add(model);
  const auto text = OnnxJobTemplate(model.Write(name), "job.yaml");
  if (!text.ok()) return std::string(text.status().message());
  const auto spec = ParseJobFile(*text, "job.yaml");
  EXPECT_TRUE(spec.ok()) << spec.status() << *text;
  const std::string uncommented = absl::StrReplaceAll(
      *text, {{"  synthetic:", "  # synthetic:"}, {"  # npy:", "  npy:"}, {"\n  #  ", "\n   "}});
  const auto own_data = ParseJobFile(uncommented, "job.yaml");
  EXPECT_TRUE(own_data.ok()) << own_data.status() << uncommented;
  EXPECT_EQ(own_data->data().npy().inputs().at("x:0"), "x_0.npy") << uncommented;
  return *text;
}

TEST(JobTemplateTest, TheLossOfAnOnnxFileFitsItsOutputs) {
  const auto plain = [](OnnxModelBuilder& model) { model.Output("y"); };
  EXPECT_THAT(JobTextOf("Two_Classes.v2.onnx", {3, 2}, plain),
              AllOf(HasSubstr("name: two-classes-v2 "), HasSubstr("loss: softmax_cross_entropy ")));
  EXPECT_THAT(JobTextOf("one.onnx", {3, 1}, plain), HasSubstr("loss: mean_squared_error "));
  EXPECT_THAT(JobTextOf("own_loss.onnx", {3, 2},
                        [](OnnxModelBuilder& model) {
                          model.Output("y").Output("mean");
                          model.Node("ReduceMean", {"y"}, {"mean"}, {{"keepdims", {0}}});
                        }),
              AllOf(HasSubstr("    logits: mean                # f32[], "),
                    HasSubstr("    # logits: y                 # f32[B, 2], "),
                    HasSubstr("    loss: output ")));
  EXPECT_THAT(JobTextOf("labels.onnx", {3, 2},
                        [](OnnxModelBuilder& model) {
                          model.Output("y").Input("label", {0}, onnx::TensorProto::INT64);
                        }),
              HasSubstr("    labels: label               # an input of the file\n"));
  EXPECT_THAT(
      JobTextOf("none.onnx", {3, 2},
                [](OnnxModelBuilder& model) {
                  model.Output("rows").Integers("flat", {-1});
                  model.Node("Reshape", {"y", "flat"}, {"rows"});
                }),
      HasSubstr(
          "no output fits a loss, which reads f32[] or f32[B, ...]; the file has rows f32[2B]"));
}

TEST(ContextsTest, ReadsBackWhatWasWrittenAndOnlyTheOwnerMayReadIt) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/config-", getpid(), "/muster/contexts.yaml");
  EXPECT_THAT(ReadContexts(path)->by_name, IsEmpty()) << "a missing file is not a fault";
  const Contexts written{.current = "prod",
                         .by_name = {{"prod", {"muster.example.org:7070", "/tls", "/token"}},
                                     {"here", {.server = "127.0.0.1:7070"}}}};
  ASSERT_TRUE(WriteContexts(path, written).ok());

  const auto read = ReadContexts(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->current, "prod");
  EXPECT_EQ(read->by_name, written.by_name);
  struct stat facts = {};
  ASSERT_EQ(stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600);
  EXPECT_EQ(FindContext(*read, "")->server, "muster.example.org:7070");
  EXPECT_EQ(FindContext(*read, "here")->server, "127.0.0.1:7070");
  EXPECT_EQ(FindContext(*read, "there").status().message(),
            "no context 'there'; there are here, prod");
  EXPECT_EQ(*FindContext(Contexts(), ""), Context()) << "no context is current";
}

TEST(ContextsTest, AFaultyFileIsNamed) {
  const std::string path = ::testing::TempDir() + "/faulty.yaml";
  for (const char* text : {"- a", "currant: x", "contexts: {a: {sever: x}}", "contexts: {a: b}",
                           "contexts: {a: {server: [1]}}", "{"}) {
    std::ofstream(path) << text;
    const auto read = ReadContexts(path);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(path)) << text;
  }
}

TEST(DoctorTest, ReportListsEveryFindingWithItsCure) {
  const std::vector<Finding> findings = {
      {"shared memory", Finding::kFine, "/dev/shm has 11.2 GiB free", ""},
      {"GPUs", Finding::kNote, "none: workers use the CPU", ""},
      {"memlock", Finding::kWarning, "64.0 KiB may be locked", "ulimit -l unlimited"},
      {"coordinator", Finding::kFault, "nobody answers at 127.0.0.1:7070", "muster local up"}};
  EXPECT_EQ(DoctorText(findings, /*color=*/false),
            "ok    shared memory  /dev/shm has 11.2 GiB free\n"
            "note  GPUs           none: workers use the CPU\n"
            "warn  memlock        64.0 KiB may be locked\n"
            "                     do: ulimit -l unlimited\n"
            "FAIL  coordinator    nobody answers at 127.0.0.1:7070\n"
            "                     do: muster local up\n"
            "1 fault, 1 warning\n");
}

TEST(DoctorTest, ExaminesTheMachineWithoutACoordinator) {
  std::vector<std::string> names;
  for (const Finding& finding : ExamineMachine({})) {
    names.push_back(finding.name);
    EXPECT_FALSE(finding.what.empty()) << finding.name;
    EXPECT_TRUE(finding.level < Finding::kWarning || !finding.cure.empty())
        << finding.name << " has no cure";
  }
  EXPECT_THAT(names, AllOf(::testing::Contains("cores"), ::testing::Contains("shared memory"),
                           ::testing::Contains("open files"), ::testing::Contains("memlock"),
                           ::testing::Contains("GPUs"), ::testing::Contains("NCCL"),
                           ::testing::Contains("RDMA"), ::testing::Contains("ports"),
                           ::testing::Contains("transport"), ::testing::Contains("disk")));
}

// Members must accept every transport that the doctor names.
TEST(DoctorTest, NamesOnlyTransportsThatExist) {
  for (const Finding& finding : ExamineMachine({})) {
    for (const absl::string_view text :
         {absl::string_view(finding.what), absl::string_view(finding.cure)}) {
      constexpr absl::string_view kFlag = "--transport=";
      for (size_t at = text.find(kFlag); at != absl::string_view::npos;
           at = text.find(kFlag, at + 1)) {
        const absl::string_view rest = text.substr(at + kFlag.size());
        const absl::string_view word = rest.substr(0, rest.find_first_of(" ,;:)"));
        EXPECT_TRUE(ParseLinkKind(word).ok()) << finding.name << ": " << text;
      }
    }
  }
}

TEST(DoctorTest, AMissingTlsFolderIsAFault) {
  const std::string folder = ::testing::TempDir() + "/no-such-folder";
  const Finding finding = ExamineTls(folder, absl::UnixEpoch());
  EXPECT_EQ(finding.level, Finding::kFault);
  EXPECT_THAT(finding.what, HasSubstr("ca.crt"));
  EXPECT_FALSE(finding.cure.empty());
}

TEST(DoctorTest, WarnsAboutAClockThatDiffers) {
  const absl::Time asked = absl::FromUnixSeconds(1000), told = absl::FromUnixSeconds(1001);
  EXPECT_EQ(ExamineClock({.asked = asked, .answered = told, .server = told}).level, Finding::kFine);
  const Finding late =
      ExamineClock({.asked = asked, .answered = told, .server = asked - absl::Minutes(5)});
  EXPECT_EQ(late.level, Finding::kWarning);
  EXPECT_THAT(late.what, HasSubstr("5m0.5s behind"));
  EXPECT_THAT(late.cure, HasSubstr("NTP"));
}

}  // namespace
}  // namespace muster::cli::setup_text_test
