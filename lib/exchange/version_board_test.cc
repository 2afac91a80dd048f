#include "lib/exchange/version_board.h"

#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "lib/shard/testing/test_plan.h"
#include "lib/status/status.h"

namespace muster::version_board_test {
namespace {

constexpr int kTwoChunks = 0, kFrozen = 1, kOneChunk = 2;  // parameters
constexpr int64_t kFirst = 5;

v1::JobPlan Plan() {
  return MakeTestPlan({.parameters = {8, 4, 4},
                       .frozen = {kFrozen},
                       .chunk_bytes = 4 * sizeof(float),
                       .first_step = kFirst});
}

std::string NotAsked() {
  ADD_FAILURE() << "no wait may time out here";
  return "";
}

// Answers all chunks of the parameters that are not frozen.
void AnswerAll(VersionBoard& board, int64_t version) {
  for (const int parameter : {kTwoChunks, kTwoChunks, kOneChunk}) {
    board.Answered(parameter, version);
  }
}

// A board that has the values of the first version.
struct Started {
  explicit Started(VersionBoard::Options options = {}) : board(Plan(), options) {
    AnswerAll(board, kFirst);
    board.Answered(kFrozen, kFirst);
  }
  VersionBoard board;
};

TEST(VersionBoardTest, LastChunkCompletesAParameterAndLastParameterAVersion) {
  VersionBoard board(Plan(), {});
  board.Answered(kTwoChunks, kFirst);
  EXPECT_FALSE(board.HasParameter(kTwoChunks, kFirst));
  board.Answered(kTwoChunks, kFirst);
  EXPECT_TRUE(board.HasParameter(kTwoChunks, kFirst));
  board.Answered(kFrozen, kFirst);
  EXPECT_EQ(board.version(), kFirst - 1);
  EXPECT_EQ(board.step(), kFirst);
  board.Answered(kOneChunk, kFirst);
  EXPECT_EQ(board.version(), kFirst);
  EXPECT_EQ(board.chunks_awaited(), 0);

  board.Expect(3);
  AnswerAll(board, kFirst + 4);
  EXPECT_EQ(board.version(), kFirst + 4) << "the version does not wait for frozen parameters";
  EXPECT_FALSE(board.HasParameter(kOneChunk, kFirst)) << "the parameter has a later version now";
}

TEST(VersionBoardTest, TellsOfTheFirstFailureOnceAndWaitsWithoutALimitUntilThen) {
  int told = 0;
  Started started({.answer_timeout = absl::InfiniteDuration(), .on_failure = [&] { ++told; }});
  absl::Status awaited;
  {
    std::jthread waits([&] { awaited = started.board.AwaitVersion(kFirst + 1, NotAsked); });
    std::jthread fails([&] { started.board.Fail(absl::InternalError("broken"), "ps-1"); });
  }
  started.board.Fail(absl::InternalError("again"), "ps-2");
  EXPECT_EQ(awaited.message(), "broken");
  EXPECT_EQ(told, 1);
}

TEST(VersionBoardTest, FrozenParameterThatIsHereHasEveryVersion) {
  VersionBoard board(Plan(), {});
  EXPECT_FALSE(board.HasParameter(kFrozen, kFirst));
  board.Answered(kFrozen, kFirst);
  EXPECT_TRUE(board.HasParameter(kFrozen, kFirst));
  EXPECT_TRUE(board.HasParameter(kFrozen, kFirst + 100));
  EXPECT_EQ(board.ChunkVersionFor(kFrozen, kFirst + 100), kFirst);
  EXPECT_EQ(board.ChunkVersionFor(kOneChunk, kFirst + 100), kFirst + 100);
}

TEST(VersionBoardTest, WithoutOverlapNoParameterIsHereBeforeAllAre) {
  VersionBoard board(Plan(), {.overlap = false});
  board.Answered(kOneChunk, kFirst);
  EXPECT_FALSE(board.HasParameter(kOneChunk, kFirst));
  for (const int parameter : {kTwoChunks, kTwoChunks, kFrozen}) board.Answered(parameter, kFirst);
  EXPECT_TRUE(board.HasParameter(kOneChunk, kFirst));
}

TEST(VersionBoardTest, EveryWaitEndsWhenItsVersionArrives) {
  Started started;
  VersionBoard& board = started.board;
  board.Expect(3);
  absl::Status parameter, version, answers;
  absl::StatusOr<float> loss_scale;
  {
    std::jthread first([&] { parameter = board.AwaitParameter(kOneChunk, kFirst + 1, NotAsked); });
    std::jthread second([&] { version = board.AwaitVersion(kFirst + 1, NotAsked); });
    std::jthread third([&] { loss_scale = board.AwaitLossScale(kFirst + 1, NotAsked); });
    std::jthread fourth([&] { answers = board.AwaitAnswers(NotAsked); });
    board.SetLossScale(kFirst + 1, 1024);
    AnswerAll(board, kFirst + 1);
  }
  EXPECT_TRUE(parameter.ok()) << parameter;
  EXPECT_TRUE(version.ok()) << version;
  EXPECT_TRUE(answers.ok()) << answers;
  ASSERT_TRUE(loss_scale.ok()) << loss_scale.status();
  EXPECT_EQ(*loss_scale, 1024);
}

TEST(VersionBoardTest, FirstLossScaleOfAVersionCounts) {
  Started started;
  started.board.SetLossScale(kFirst + 1, 8);
  started.board.SetLossScale(kFirst + 1, 4);
  started.board.SetLossScale(kFirst, 2);
  EXPECT_EQ(*started.board.AwaitLossScale(kFirst + 1, NotAsked), 8);
}

TEST(VersionBoardTest, TimeoutNamesTheMissingChunkAndItsDuration) {
  Started started({.answer_timeout = absl::Milliseconds(1)});
  const absl::Status late =
      started.board.AwaitVersion(kFirst + 1, [] { return std::string("the moon is missing"); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(ReasonOf(late), "STEP_TIMEOUT");
  EXPECT_EQ(late.message(), "step 6: the moon is missing for 1ms");
}

TEST(VersionBoardTest, WaitForAnswersHasATimeoutToo) {
  Started started({.answer_timeout = absl::Milliseconds(1)});
  started.board.Expect(1);
  const absl::Status late =
      started.board.AwaitAnswers([] { return std::string("a word is missing"); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(ReasonOf(late), "STEP_TIMEOUT");
  EXPECT_EQ(late.message(), "step 5: a word is missing for 1ms");
}

TEST(VersionBoardTest, CatchingUpTimesOutWhenNoAnswerComesAtAll) {
  // A busy machine may keep a thread from running for a tenth of a second.
  constexpr absl::Duration kTimeout = absl::Milliseconds(500);
  Started started({.answer_timeout = kTimeout});
  VersionBoard& board = started.board;
  board.SetOvertaken();
  board.BeginCatchUp();
  const absl::Status late = board.AwaitCaughtUp([] { return std::string("all is missing"); });
  EXPECT_EQ(ReasonOf(late), "STEP_TIMEOUT") << late;
  EXPECT_EQ(late.message(), "step 5: all is missing for 500ms");

  std::jthread slow([&] {
    for (const absl::Time end = absl::Now() + 1.5 * kTimeout; absl::Now() < end;) {
      board.Expect(1);
      board.Answered(kOneChunk, kFirst + 3);
      std::this_thread::yield();
    }
    board.HaveCaughtUp(kFirst + 3);
  });
  EXPECT_TRUE(board.AwaitCaughtUp(NotAsked).ok()) << "answers come, however slowly";
}

// The lock is not reentrant, and the function that names the missing chunk may use the board.
TEST(VersionBoardTest, MissingChunkIsNamedWithoutTheLock) {
  Started started({.answer_timeout = absl::Milliseconds(1)});
  const absl::Status late = started.board.AwaitVersion(
      kFirst + 1, [&] { return "culprit '" + started.board.culprit() + "'"; });
  EXPECT_EQ(late.message(), "step 6: culprit '' for 1ms");
}

TEST(VersionBoardTest, InterruptEndsWaitsForVersionsButNotForAnswers) {
  Started started;
  VersionBoard& board = started.board;
  board.Expect(3);
  absl::Status answers;
  {
    std::jthread pausing([&] { answers = board.AwaitAnswers(NotAsked); });
    board.Interrupt();
    const absl::Status version = board.AwaitVersion(kFirst + 1, NotAsked);
    EXPECT_TRUE(absl::IsAborted(version)) << version;
    EXPECT_EQ(version.message(), "interrupted before step 6");
    EXPECT_TRUE(absl::IsAborted(board.AwaitLossScale(kFirst + 1, NotAsked).status()));
    AnswerAll(board, kFirst + 1);
  }
  EXPECT_TRUE(answers.ok()) << answers;
  EXPECT_TRUE(board.AwaitVersion(kFirst + 1, NotAsked).ok()) << "nothing to wait for";
}

// A paused worker may have pushed a chunk that another worker no longer pushed. Then the answer
// never comes, and a save may take long.
TEST(VersionBoardTest, InterruptedWaitForAnswersEndsOnlyWithAnswersOrAFailure) {
  Started started({.answer_timeout = absl::Milliseconds(1)});
  VersionBoard& board = started.board;
  board.Interrupt();
  board.Expect(3);
  absl::Status answers;
  {
    std::jthread pausing([&] { answers = board.AwaitAnswers(NotAsked); });
    const absl::Status late = board.AwaitChange([] { return false; }, [] { return ""; });
    EXPECT_EQ(ReasonOf(late), "STEP_TIMEOUT") << "the timeout of AwaitAnswers() has passed too";
    AnswerAll(board, kFirst + 1);
  }
  EXPECT_TRUE(answers.ok()) << answers;
  board.Expect(1);
  {
    std::jthread pausing([&] { answers = board.AwaitAnswers(NotAsked); });
    board.Fail(absl::CancelledError("released"), "");
  }
  EXPECT_EQ(answers, absl::CancelledError("released"));
}

TEST(VersionBoardTest, FirstFailureIsFinalAndEndsEveryWait) {
  Started started;
  VersionBoard& board = started.board;
  EXPECT_TRUE(board.failure().ok());
  board.Expect(1);
  board.BeginCatchUp();
  absl::Status version, answers, caught_up;
  {
    std::jthread first([&] { version = board.AwaitVersion(kFirst + 1, NotAsked); });
    std::jthread second([&] { answers = board.AwaitAnswers(NotAsked); });
    std::jthread third([&] { caught_up = board.AwaitCaughtUp(NotAsked); });
    std::jthread fourth([&] { EXPECT_TRUE(board.AwaitConnected(absl::InfiniteDuration())); });
    board.Fail(absl::UnavailableError("gone"), "ps-1");
  }
  board.Fail(absl::InternalError("later"), "ps-2");
  const absl::Status gone = absl::UnavailableError("gone");
  EXPECT_EQ(version, gone);
  EXPECT_EQ(answers, gone);
  EXPECT_EQ(caught_up, gone);
  EXPECT_EQ(board.failure(), gone);
  EXPECT_EQ(board.culprit(), "ps-1");
  EXPECT_EQ(board.AwaitParameter(kOneChunk, kFirst, NotAsked), gone)
      << "also for a version that is here";
}

TEST(VersionBoardTest, AwaitChangeEndsWithTheChangeOrAFailure) {
  Started started;
  VersionBoard& board = started.board;
  int updates = 0;
  absl::Status two, three;
  {
    std::jthread first([&] { two = board.AwaitChange([&] { return updates >= 2; }, NotAsked); });
    std::jthread second([&] { three = board.AwaitChange([&] { return updates >= 3; }, NotAsked); });
    board.Change([&] { ++updates; });
    board.Change([&] { ++updates; });
    first.join();
    board.Interrupt();
    board.Fail(absl::CancelledError("released"), "");
  }
  EXPECT_EQ(two, absl::OkStatus());
  EXPECT_EQ(three, absl::CancelledError("released"));
}

TEST(VersionBoardTest, AwaitChangeHasATimeoutToo) {
  Started started({.answer_timeout = absl::Milliseconds(1)});
  const absl::Status late = started.board.AwaitChange(
      [] { return false; }, [] { return std::string("the change is missing"); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(ReasonOf(late), "STEP_TIMEOUT");
  EXPECT_EQ(late.message(), "step 5: the change is missing for 1ms");
}

TEST(VersionBoardTest, AwaitConnectedEndsWithItsTimeout) {
  VersionBoard board(Plan(), {});
  EXPECT_FALSE(board.AwaitConnected(absl::Milliseconds(1)));
  std::jthread thread([&] { board.SetConnected(); });
  EXPECT_TRUE(board.AwaitConnected(absl::InfiniteDuration()));
  EXPECT_TRUE(board.failure().ok());
}

TEST(VersionBoardTest, OvertakenBoardHasNoNewVersionBeforeItHasCaughtUp) {
  Started started;
  VersionBoard& board = started.board;
  board.Expect(3);
  board.Answered(kTwoChunks, kFirst + 1);
  board.SetOvertaken();
  const absl::Status forward = board.AwaitVersion(kFirst + 1, NotAsked);
  EXPECT_TRUE(absl::IsAborted(forward)) << forward;
  EXPECT_EQ(forward.message(), "overtaken at step 6");
  board.Answered(kTwoChunks, kFirst + 3);
  board.Answered(kOneChunk, kFirst + 3);
  EXPECT_EQ(board.chunks_awaited(), 0);
  EXPECT_FALSE(board.HasParameter(kOneChunk, kFirst + 3));

  board.BeginCatchUp();
  EXPECT_TRUE(board.catching_up());
  std::jthread thread([&] { board.HaveCaughtUp(kFirst + 3); });
  EXPECT_TRUE(board.AwaitCaughtUp(NotAsked).ok());
  EXPECT_FALSE(board.overtaken());
  EXPECT_EQ(board.version(), kFirst + 3);
  EXPECT_TRUE(board.HasParameter(kTwoChunks, kFirst + 3));
  EXPECT_TRUE(board.HasParameter(kFrozen, kFirst + 3));

  board.Expect(3);
  AnswerAll(board, kFirst + 4);
  EXPECT_EQ(board.version(), kFirst + 4) << "the incomplete step is forgotten";
}

}  // namespace
}  // namespace muster::version_board_test
