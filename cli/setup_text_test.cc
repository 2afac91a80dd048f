// Templates, contexts and the doctor's report.
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/contexts.h"
#include "cli/doctor.h"
#include "cli/job_template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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
    const auto text = JobTemplate(model);
    ASSERT_TRUE(text.ok()) << text.status();
    const auto spec = ParseJobFile(*text, "job.yaml");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->model().zoo().name(), model);
    const auto faults = ValidateJobSpec(*spec);
    EXPECT_THAT(faults, IsEmpty()) << faults[0].field << ": " << faults[0].description;
  }
  EXPECT_THAT(std::string(JobTemplate("resnet5").status().message()),
              HasSubstr("did you mean 'resnet50'?"));
}

TEST(ContextsTest, WhatIsWrittenIsReadBackAndIsNobodyElses) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/config-", getpid(), "/muster/contexts.yaml");
  EXPECT_THAT(ReadContexts(path)->by_name, IsEmpty()) << "no file is no fault";
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
  EXPECT_EQ(*FindContext(Contexts(), ""), Context()) << "none is chosen";
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

TEST(DoctorTest, TheReportHasEveryFindingAndItsCure) {
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

TEST(DoctorTest, LooksAtThisMachineWithoutACoordinator) {
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

// A transport that the doctor names is one that members take.
TEST(DoctorTest, NamesTransportsThatThereAre) {
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

TEST(DoctorTest, ATlsFolderIsReadForWhatWouldFail) {
  const std::string folder = ::testing::TempDir() + "/no-such-folder";
  const Finding finding = ExamineTls(folder, absl::UnixEpoch());
  EXPECT_EQ(finding.level, Finding::kFault);
  EXPECT_THAT(finding.what, HasSubstr("ca.crt"));
  EXPECT_FALSE(finding.cure.empty());
}

TEST(DoctorTest, AClockThatDiffersIsTold) {
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
