#include "lib/program/program_group.h"

#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::program_group_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// Runs a shell script in several processes and keeps the lines of their standard output.
class Group {
 public:
  Group(const std::string& text, int processes) {
    auto started =
        ProgramGroup::Start({.command = {"sh", "-c", text},
                             .environment = {"SUBMIT=0"},
                             .processes = processes,
                             .first_environment = {"SUBMIT=1"},
                             .on_line =
                                 [this](int process, OutputStream stream, absl::string_view line) {
                                   if (stream != OutputStream::kStdout) return;
                                   absl::MutexLock lock(&mu_);
                                   lines_.push_back(absl::StrCat(process, " ", line));
                                 },
                             .on_outcome = [this] { known_.Notify(); }});
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) group_ = *std::move(started);
  }

  ProgramGroup& operator*() { return *group_; }
  ProgramGroup::Outcome AwaitOutcome() {
    known_.WaitForNotification();
    return group_->outcome().value_or(ProgramGroup::Outcome());
  }
  std::vector<std::string> AwaitLines(int count) {
    absl::MutexLock lock(&mu_);
    auto enough = [this, count]()
                      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return lines_.size() >= count; };
    mu_.Await(absl::Condition(&enough));
    return lines_;
  }

 private:
  absl::Notification known_;
  absl::Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ProgramGroup> group_;  // last: its threads use the others
};

TEST(ProgramGroupTest, TellsEachProcessItsPlace) {
  Group group(R"(echo "$MUSTER_LOCAL_PROCESS of $MUSTER_LOCAL_PROCESSES, $SUBMIT, $MASTER_ADDR")",
              3);

  EXPECT_TRUE(group.AwaitOutcome().end.ok());
  EXPECT_THAT(group.AwaitLines(3),
              UnorderedElementsAre("0 0 of 3, 1, 127.0.0.1\n", "1 1 of 3, 0, 127.0.0.1\n",
                                   "2 2 of 3, 0, 127.0.0.1\n"));
}

TEST(ProgramGroupTest, ASingleProcessNeedsNoPort) {
  Group group(R"(echo "$MUSTER_LOCAL_PROCESSES ${MASTER_PORT-none}")", 1);

  EXPECT_TRUE(group.AwaitOutcome().end.ok());
  EXPECT_THAT(group.AwaitLines(1), ElementsAre("0 1 none\n"));
}

TEST(ProgramGroupTest, TheFirstFailureIsTheOutcome) {
  Group group(
      R"(case $MUSTER_LOCAL_PROCESS in
         1) for i in $(seq 40); do echo "line $i" >&2; done; printf '99%%\rTraceback' >&2; exit 3;;
         *) trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done;;
         esac)",
      2);

  const ProgramGroup::Outcome outcome = group.AwaitOutcome();

  EXPECT_EQ(outcome.process, 1);
  EXPECT_EQ(outcome.end.code, 3);
  EXPECT_THAT(outcome.errors, AllOf(StartsWith("line 12\n"), HasSubstr("line 40\nTraceback\n"),
                                    Not(HasSubstr("99%"))));
  group.AwaitLines(1);
  (*group).Stop(absl::Seconds(60));
  EXPECT_TRUE((*group).AwaitEnd(absl::ZeroDuration()));
  EXPECT_EQ((*group).outcome()->end.code, 3) << "a later failure replaced the first";
}

TEST(ProgramGroupTest, StopKillsAProcessThatIgnoresSigterm) {
  Group group("trap '' TERM; echo ready; while :; do sleep 0.01; done", 1);
  group.AwaitLines(1);
  EXPECT_FALSE((*group).AwaitEnd(absl::ZeroDuration()));

  (*group).Stop(absl::Milliseconds(50));

  EXPECT_EQ(group.AwaitOutcome().end.signal, SIGKILL);
}

}  // namespace
}  // namespace muster::program_group_test
