#include "cli/text/event_fold.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::event_fold_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

int64_t next_second = 0;

v1::JobEvent Event(const std::string& job, const std::string& reason, const std::string& message) {
  v1::JobEvent event;
  event.set_job(job);
  event.set_reason(reason);
  event.set_message(message);
  event.mutable_time()->set_seconds(++next_second);
  return event;
}

v1::JobEvent Checkpoint(const std::string& job, int step) {
  return Event(job, "CHECKPOINT_COMMITTED", absl::StrCat(job, "@", step));
}

std::vector<std::string> Messages(const std::vector<v1::JobEvent>& events) {
  std::vector<std::string> messages;
  for (const v1::JobEvent& event : events) messages.push_back(event.message());
  return messages;
}

TEST(EventFoldTest, ShowsTheLastOfConsecutiveCheckpoints) {
  const std::vector<v1::JobEvent> events = {Event("a-1", "STARTED", "begins"),
                                            Checkpoint("a-1", 10),
                                            Checkpoint("a-1", 20),
                                            Checkpoint("b-2", 5),
                                            Checkpoint("a-1", 30),
                                            Event("a-1", "MEMBER_LOST", "lost"),
                                            Checkpoint("a-1", 40),
                                            Checkpoint("a-1", 50)};

  EXPECT_THAT(Messages(Folded(events)),
              ElementsAre("begins", "b-2@5", "a-1@30; 2 checkpoints before it", "lost",
                          "a-1@50; 1 checkpoint before it"));
  EXPECT_THAT(Folded({}), IsEmpty());
}

TEST(EventFoldTest, HoldsACheckpointBackUntilAnotherEventOfItsJob) {
  EventFold fold;
  EXPECT_THAT(fold.Take({Checkpoint("a-1", 10)}), IsEmpty());
  EXPECT_THAT(Messages(fold.Take({Event("b-2", "STARTED", "begins")})), ElementsAre("begins"));
  EXPECT_THAT(fold.Take({Checkpoint("a-1", 20)}), IsEmpty());
  EXPECT_THAT(Messages(fold.Take({Event("a-1", "COMPLETED", "done")})),
              ElementsAre("a-1@20; 1 checkpoint before it", "done"));
  fold.Take({Checkpoint("a-1", 30)});
  EXPECT_THAT(Messages(fold.Rest()), ElementsAre("a-1@30"));
  EXPECT_THAT(fold.Rest(), IsEmpty());
}

}  // namespace
}  // namespace muster::cli::event_fold_test
