#include "cli/text/member_log.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace muster::cli::member_log_test {
namespace {

constexpr char kPrefix[] = "I20261129 02:11:46.746656  2376 trainer.cc:99] ";

std::string Line(const std::string& message) { return absl::StrCat(kPrefix, message, "\n"); }

TEST(MemberLogTest, DropsLinesOfOtherJobs) {
  const std::string own = absl::StrCat(
      Line("ps-0: 2 shard threads"), Line("attached to the coordinator at 127.0.0.1:1, term 1"),
      Line("big-1, generation 2: halted"), Line("big-1: the link to worker-0 is shm"),
      Line("big-1 generation 1: MEMBER_RUNNING"), Line("step-5 of something: it says"));

  EXPECT_EQ(WithoutOtherJobs(own, "big-1", "ps-0"), own);
  for (const char* other : {"big-11: the link to worker-0 is shm", "other-2, shard 1: lost",
                            "other-2 generation 1: MEMBER_DONE", "b-i-g-1: x",
                            "other-2 cannot be prepared: big-1 is not released"}) {
    EXPECT_EQ(WithoutOtherJobs(own + Line(other), "big-1", "ps-0"), own) << other;
  }
}

TEST(MemberLogTest, ALineWithoutAPrefixBelongsToTheLineBefore) {
  EXPECT_EQ(WithoutOtherJobs(absl::StrCat(Line("big-1: two"), "lines: x\n", Line("other-2: two"),
                                          "more] lines\n", Line("the end")),
                             "big-1", "ps-0"),
            absl::StrCat(Line("big-1: two"), "lines: x\n", Line("the end")));
  EXPECT_EQ(WithoutOtherJobs("", "big-1", "ps-0"), "");
  EXPECT_EQ(WithoutOtherJobs("the end of a line that was cut\n", "big-1", "ps-0"),
            "the end of a line that was cut\n");
}

}  // namespace
}  // namespace muster::cli::member_log_test
