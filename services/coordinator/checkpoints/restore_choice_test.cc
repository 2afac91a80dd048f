#include "services/coordinator/checkpoints/restore_choice.h"

#include <fcntl.h>
#include <stdio.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/known_checkpoint.h"
#include "lib/status/status.h"

// True if rename() must fail.
static std::atomic<bool> renames_fail = false;

// Replaces rename() of libc in this program.
extern "C" int rename(const char* from, const char* to) noexcept {
  if (!renames_fail) return renameat(AT_FDCWD, from, AT_FDCWD, to);
  errno = EIO;
  return -1;
}

namespace muster::restore_choice_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RestoreChoiceTest : public ::testing::Test {
 protected:
  RestoreChoiceTest() : folder_(*StateFolder::Open(TestFolder())) {
    record_.set_name("jobs/known-1");
    for (const int64_t step : {10, 20, 30}) {
      EXPECT_TRUE(WriteKnownCheckpoint(own_, KnownPlan({{3}}), step, 1).ok());
    }
  }

  std::string FileOf(int64_t step) const {
    return CheckpointPath(own_, step) + "/optimizer-00001-of-00001.safetensors";
  }
  // Makes every open of the file fail with ELOOP.
  static void MakeUnreadable(const std::string& file) {
    std::filesystem::remove(file);
    std::filesystem::create_symlink(file, file);
  }
  // Flips one bit in the last byte of a slot.
  void Damage(int64_t step) const {
    std::string content = ReadWhole(FileOf(step));
    content.back() ^= 1;
    WriteWhole(FileOf(step), content);
  }

  const StateFolder folder_;
  const std::string own_ = folder_.checkpoints("known-1");
  v1::Job record_;
};

TEST_F(RestoreChoiceTest, ContinuesFromTheLastCheckpoint) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");

  const auto choice =
      ChooseRestore(record_, {.restore = "jobs/other-2/checkpoints/5", .first_step = 5}, folder_);

  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->restore, "jobs/known-1/checkpoints/30");
  EXPECT_EQ(choice->first_step, 30);
  EXPECT_TRUE(choice->passed_over.empty());
}

TEST_F(RestoreChoiceTest, TellsTheDataThatTheCheckpointWasTrainedOn) {
  const std::string path = CheckpointPath(own_, 30);
  Manifest manifest = (*CheckpointReader::Open(path))->manifest();
  manifest.data_fingerprint = "12ab";
  WriteWhole(path + "/manifest.json", *manifest.ToJson());
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  *record_.mutable_spec() = manifest.spec;

  const auto own = ChooseRestore(record_, {}, folder_);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->data_fingerprint, "12ab");
  EXPECT_TRUE(own->is_own);

  record_.set_name("jobs/other-2");
  record_.clear_checkpoint();
  const JobOrigin origin = {.restore = "jobs/known-1/checkpoints/30", .first_step = 30};
  EXPECT_EQ(ChooseRestore(record_, origin, folder_)->data_fingerprint, "12ab");
  EXPECT_FALSE(ChooseRestore(record_, origin, folder_)->is_own);
  record_.mutable_spec()->mutable_data()->set_seed(1234);
  EXPECT_EQ(ChooseRestore(record_, origin, folder_)->data_fingerprint, "") << "another `data:`";
}

TEST_F(RestoreChoiceTest, SkipsDamagedOnesForTheNewestIntactOne) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  Damage(30);
  std::filesystem::resize_file(FileOf(20), 100);

  int damaged = 0;
  const auto choice = ChooseRestore(record_, {}, folder_, {.damaged = [&] { ++damaged; }});

  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(damaged, 2);
  EXPECT_EQ(choice->restore, "jobs/known-1/checkpoints/10");
  EXPECT_EQ(choice->first_step, 10);
  ASSERT_EQ(choice->passed_over.size(), 2);
  EXPECT_EQ(choice->passed_over[0].step, 30);
  EXPECT_THAT(choice->passed_over[0].what, AllOf(HasSubstr(FileOf(30)), HasSubstr("SHA-256")));
  EXPECT_EQ(choice->passed_over[1].step, 20);
  EXPECT_THAT(choice->passed_over[1].what, HasSubstr(FileOf(20) + ": ends at offset 100"));
  EXPECT_THAT(*ListCheckpointSteps(own_), ElementsAre(10)) << "the others are set aside";
  EXPECT_TRUE(std::filesystem::exists(own_ + "/step-00000030.damaged/manifest.json"));
}

TEST_F(RestoreChoiceTest, SkipsALastCheckpointThatIsGone) {
  record_.set_checkpoint("jobs/known-1/checkpoints/40");

  const auto choice = ChooseRestore(record_, {}, folder_);

  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->first_step, 30);
  ASSERT_EQ(choice->passed_over.size(), 1);
  EXPECT_THAT(choice->passed_over[0].what, HasSubstr("step-00000040: not a committed checkpoint"));
}

TEST_F(RestoreChoiceTest, SkipsAnUnreadableOneAndLeavesItInPlace) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  Damage(20);
  for (const std::string& file : {FileOf(30), CheckpointPath(own_, 30) + "/manifest.json"}) {
    SCOPED_TRACE(file);
    MakeUnreadable(file);

    int damaged = 0;
    const auto choice = ChooseRestore(record_, {}, folder_, {.damaged = [&] { ++damaged; }});

    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->first_step, 10);
    EXPECT_EQ(damaged, 1);
    ASSERT_EQ(choice->passed_over.size(), 2);
    EXPECT_EQ(choice->passed_over[0].step, 30);
    EXPECT_EQ(choice->passed_over[0].what, file + ": open: too many levels of symbolic links");
    EXPECT_FALSE(choice->passed_over[0].set_aside);
    EXPECT_TRUE(choice->passed_over[1].set_aside);
    EXPECT_TRUE(std::filesystem::is_directory(CheckpointPath(own_, 30)));
    std::filesystem::rename(CheckpointPath(own_, 20) + ".damaged", CheckpointPath(own_, 20));
  }
}

TEST_F(RestoreChoiceTest, ChangesNothingIfNoneCanBeRead) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  for (const int64_t step : {10, 20}) MakeUnreadable(FileOf(step));
  Damage(30);

  const absl::Status status = ChooseRestore(record_, {}, folder_).status();

  EXPECT_EQ(ReasonOf(status), "STORAGE_FAILED") << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("none of the 3 checkpoints of known-1 is sound"),
                    HasSubstr(FileOf(20) + ": open: too many levels of symbolic links")));
  EXPECT_THAT(*ListCheckpointSteps(own_), ElementsAre(10, 20, 30));
}

TEST_F(RestoreChoiceTest, SkipsADamagedOneEvenIfItCannotBeSetAside) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  Damage(30);
  renames_fail = true;

  const auto choice = ChooseRestore(record_, {}, folder_);
  renames_fail = false;

  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->first_step, 20);
  ASSERT_EQ(choice->passed_over.size(), 1);
  EXPECT_FALSE(choice->passed_over[0].set_aside);
  EXPECT_THAT(choice->passed_over[0].what,
              AllOf(HasSubstr(FileOf(30)), HasSubstr("cannot be set aside"), HasSubstr("error")));
  EXPECT_THAT(*ListCheckpointSteps(own_), ElementsAre(10, 20, 30));
}

TEST_F(RestoreChoiceTest, IgnoresCheckpointsAfterTheLastOne) {
  record_.set_checkpoint("jobs/known-1/checkpoints/20");
  EXPECT_EQ(ChooseRestore(record_, {}, folder_)->first_step, 20);
}

TEST_F(RestoreChoiceTest, ChangesNothingIfNoneIsIntact) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  for (const int64_t step : {10, 20, 30}) Damage(step);

  int damaged = 0;
  const absl::Status status =
      ChooseRestore(record_, {}, folder_, {.damaged = [&] { ++damaged; }}).status();

  EXPECT_EQ(damaged, 3);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(ReasonOf(status), "CHECKPOINT_DAMAGED") << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("none of the 3 checkpoints of known-1 is sound"), HasSubstr(FileOf(30))));
  EXPECT_THAT(*ListCheckpointSteps(own_), ElementsAre(10, 20, 30));
}

TEST_F(RestoreChoiceTest, DoesNotReplaceACheckpointThatTheUserChose) {
  const JobOrigin origin{.restore = "jobs/known-1/checkpoints/20", .first_step = 20};
  v1::Job other;
  other.set_name("jobs/other-2");
  const auto sound = ChooseRestore(other, origin, folder_);
  ASSERT_TRUE(sound.ok()) << sound.status();
  EXPECT_EQ(sound->restore, origin.restore);
  EXPECT_EQ(sound->first_step, 20);

  Damage(20);
  Damage(10);
  for (const std::string& restore : {origin.restore, CheckpointPath(own_, 20)}) {
    int damaged = 0;
    const absl::Status status = ChooseRestore(other, {.restore = restore, .first_step = 20},
                                              folder_, {.damaged = [&] { ++damaged; }})
                                    .status();

    EXPECT_EQ(damaged, 1);
    EXPECT_EQ(ReasonOf(status), "CHECKPOINT_DAMAGED") << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("the checkpoint that other-2 starts from is damaged: " + FileOf(20)),
              HasSubstr("; sound beside it: step 30.")));
  }
  EXPECT_THAT(*ListCheckpointSteps(own_), ElementsAre(10, 20, 30));
}

TEST_F(RestoreChoiceTest, AJobWithoutCheckpointsStartsFromInitialValues) {
  const auto choice = ChooseRestore(record_, {}, folder_);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->restore, "");
  EXPECT_EQ(choice->first_step, 0);
}

TEST_F(RestoreChoiceTest, AStateFolderMayBeMoved) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  const std::string moved = ::testing::TempDir() + "moved";
  std::filesystem::remove_all(moved);
  std::filesystem::create_directories(moved + "/jobs/known-1");
  std::filesystem::copy(own_, moved + "/jobs/known-1/checkpoints",
                        std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(own_);
  const StateFolder there = *StateFolder::Open(moved);

  EXPECT_EQ(ChooseRestore(record_, {}, there)->first_step, 30);
  EXPECT_EQ(PathOfRestore(record_.checkpoint(), there),
            moved + "/jobs/known-1/checkpoints/step-00000030");
}

TEST_F(RestoreChoiceTest, AStopSetsNothingAside) {
  record_.set_checkpoint("jobs/known-1/checkpoints/30");
  EXPECT_TRUE(absl::IsCancelled(
      ChooseRestore(record_, {}, folder_, {.stop = [] { return true; }}).status()));
}

}  // namespace
}  // namespace muster::restore_choice_test
