// Tests the folder that a commit leaves behind when it dies or fails at any system call.
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/checkpoint/known_checkpoint.h"
#include "lib/status/status.h"

namespace muster::commit_test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::AnyOfArray;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kDiedExitCode = 99;

// The control of this process's system calls.
struct SystemCalls {
  int made = 0;
  int die_at = -1;               // number of the call before which the process ends
  int fail_at = -1;              // number of the call that fails with EIO
  std::string fail_call;         // calls of this name fail ...
  std::string fail_path;         // ... if their path contains this ...
  int error_number = 0;          // ... with this error
  std::vector<std::string> log;  // "fsync model-00001-of-00001.safetensors"
};
SystemCalls calls;

// Counts and logs the call. Returns whether to make it; otherwise sets errno.
bool Enter(absl::string_view call, absl::string_view path) {
  ++calls.made;
  if (calls.made == calls.die_at) _exit(kDiedExitCode);
  calls.log.push_back(
      absl::StrCat(call, " ", std::filesystem::path(std::string(path)).filename().native()));
  const bool named = call == calls.fail_call && absl::StrContains(path, calls.fail_path);
  if (calls.made != calls.fail_at && !named) return true;
  errno = named ? calls.error_number : EIO;
  return false;
}

std::string PathOf(int descriptor) {
  std::error_code error;
  return std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", descriptor), error).native();
}

extern "C" {
int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return Enter((flags & O_CREAT) ? "create" : "open", path) ? __real_open(path, flags, mode) : -1;
}

int __real_mkdir(const char* path, mode_t mode);
int __wrap_mkdir(const char* path, mode_t mode) {
  return Enter("mkdir", path) ? __real_mkdir(path, mode) : -1;
}

int __real_fallocate(int descriptor, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  return Enter("fallocate", PathOf(descriptor)) ? __real_fallocate(descriptor, mode, offset, bytes)
                                                : -1;
}

ssize_t __real_pwrite(int descriptor, const void* data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  return Enter("pwrite", PathOf(descriptor)) ? __real_pwrite(descriptor, data, bytes, offset) : -1;
}

ssize_t __real_pread(int descriptor, void* data, size_t bytes, off_t offset);
ssize_t __wrap_pread(int descriptor, void* data, size_t bytes, off_t offset) {
  if (calls.fail_call != "pread") return __real_pread(descriptor, data, bytes, offset);
  errno = calls.error_number;  // not counted: it leaves nothing behind
  return -1;
}

int __real_fsync(int descriptor);
int __wrap_fsync(int descriptor) {
  return Enter("fsync", PathOf(descriptor)) ? __real_fsync(descriptor) : -1;
}

int __real_rename(const char* from, const char* to);
int __wrap_rename(const char* from, const char* to) {
  return Enter("rename", to) ? __real_rename(from, to) : -1;
}

int __real_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned flags);
int __wrap_renameat2(int from_folder, const char* from, int to_folder, const char* to,
                     unsigned flags) {
  return Enter("exchange", to) ? __real_renameat2(from_folder, from, to_folder, to, flags) : -1;
}

// Replaces libc's function in this whole program: std::filesystem calls it for each file and folder
// that it removes.
int remove(const char* path) noexcept {
  if (!Enter("remove", path)) return -1;
  const int removed = unlink(path);
  return removed != 0 && errno == EISDIR ? rmdir(path) : removed;
}
}  // extern "C"

class CommitTest : public testing::Test {
 protected:
  void SetUp() override {
    calls = {};
    // The folder is in memory, because the tests write thousands of checkpoints.
    root_ = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir();
    root_ += "/muster-commit-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    folder_ = root_ + "/checkpoints";
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override {
    calls = {};
    std::filesystem::remove_all(root_);
  }

  struct Expectation {
    std::vector<std::string> before;  // contents that a death may leave
    std::string after;  // contents that a death may leave, and that finished work leaves
  };

  // Runs `work` in child processes. Each dies one system call later than the last, until one
  // finishes.
  void DieEverywhere(const std::function<void()>& prepare,
                     const std::function<absl::Status()>& work, const Expectation& expected) {
    for (int die_at = 1;; ++die_at) {
      SCOPED_TRACE(absl::StrCat("died before system call ", die_at));
      calls = {};
      prepare();
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        calls.made = 0;
        calls.die_at = die_at;
        _exit(work().ok() ? 0 : 1);
      }
      int outcome = 0;
      ASSERT_EQ(waitpid(child, &outcome, 0), child);
      ASSERT_TRUE(WIFEXITED(outcome));
      ASSERT_THAT(WEXITSTATUS(outcome), AnyOf(0, kDiedExitCode));
      if (WEXITSTATUS(outcome) == 0) {
        EXPECT_EQ(Contents(), expected.after);
        EXPECT_GT(die_at, 1) << "no system call was wrapped";
        return;
      }
      ASSERT_THAT(Contents(), AnyOf(expected.after, AnyOfArray(expected.before)));
    }
  }

  // Returns the content of the folder after tidying up: "step-00000010=1" for a checkpoint of
  // edition 1.
  std::string Contents() {
    EXPECT_TRUE(PruneCheckpoints(folder_, 0).status.ok());
    std::vector<std::string> contents;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      absl::StatusOr<int> edition = ReadKnownCheckpoint(entry.path(), plan_);
      contents.push_back(
          absl::StrCat(entry.path().filename().native(), "=",
                       edition.ok() ? absl::StrCat(*edition) : edition.status().ToString()));
    }
    std::sort(contents.begin(), contents.end());
    return absl::StrJoin(contents, " ");
  }

  // Returns the names of all files in or below `folder`.
  static std::vector<std::string> FilesIn(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (!entry.is_directory()) files.push_back(entry.path().filename().native());
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  void StartWith(const std::vector<std::pair<int64_t, int>>& checkpoints) {
    std::filesystem::remove_all(folder_);
    for (auto [step, edition] : checkpoints) {
      absl::Status status = WriteKnownCheckpoint(folder_, plan_, step, edition).status();
      ASSERT_TRUE(status.ok()) << status;
    }
  }

  const v1::JobPlan plan_ = KnownPlan({{200}, {}});
  std::string root_;
  std::string folder_;
};

TEST_F(CommitTest, EverythingIsOnTheDeviceBeforeTheRenameThatCommits) {
  auto writer = CheckpointWriter::Create(plan_, {.directory = folder_, .id = "a", .step = 7});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(WriteKnownSlices(**writer, plan_, 1).ok());
  calls = {};

  ASSERT_TRUE((*writer)->Commit().ok());

  ASSERT_EQ(calls.log.size(), 10) << absl::StrJoin(calls.log, "\n");
  EXPECT_EQ(calls.log[0], "fsync model-00001-of-00001.safetensors");
  EXPECT_EQ(calls.log[1], "fsync optimizer-00001-of-00001.safetensors");
  EXPECT_EQ(calls.log[2], "create manifest.json");
  EXPECT_EQ(calls.log[3], "pwrite manifest.json");
  EXPECT_EQ(calls.log[4], "fsync manifest.json");
  EXPECT_TRUE(absl::StartsWith(calls.log[5], "open step-00000007.tmp-a."));
  EXPECT_TRUE(absl::StartsWith(calls.log[6], "fsync step-00000007.tmp-a."));
  EXPECT_EQ(calls.log[7], "rename step-00000007");
  const std::string parent = std::filesystem::path(folder_).filename();
  EXPECT_EQ(calls.log[8], absl::StrCat("open ", parent));
  EXPECT_EQ(calls.log[9], absl::StrCat("fsync ", parent));
}

TEST_F(CommitTest, DeathLeavesTheNewCheckpointCompleteOrAbsent) {
  DieEverywhere(
      [&] {
        StartWith({{10, 1}});
      },
      [&] { return WriteKnownCheckpoint(folder_, plan_, 20, 2).status(); },
      {.before = {"step-00000010=1"}, .after = "step-00000010=1 step-00000020=2"});
}

TEST_F(CommitTest, DeathDuringAReplacementLeavesTheOldOrTheNewCheckpoint) {
  DieEverywhere(
      [&] {
        StartWith({{10, 1}, {20, 1}});
      },
      [&] { return WriteKnownCheckpoint(folder_, plan_, 20, 2).status(); },
      {.before = {"step-00000010=1 step-00000020=1"}, .after = "step-00000010=1 step-00000020=2"});
}

TEST_F(CommitTest, WithoutExchangeDeathLeavesTheOldOrTheNewCheckpoint) {
  DieEverywhere(
      [&] {
        StartWith({{10, 1}, {20, 1}});
      },
      [&] {
        calls.fail_call = "exchange";
        calls.error_number = EINVAL;
        return WriteKnownCheckpoint(folder_, plan_, 20, 2).status();
      },
      {.before = {"step-00000010=1 step-00000020=1"}, .after = "step-00000010=1 step-00000020=2"});
}

TEST_F(CommitTest, WithoutExchangeDeathLeavesTheOnlyCheckpointOldOrNew) {
  DieEverywhere(
      [&] {
        StartWith({{20, 1}});
      },
      [&] {
        calls.fail_call = "exchange";
        calls.error_number = EINVAL;
        return WriteKnownCheckpoint(folder_, plan_, 20, 2).status();
      },
      {.before = {"step-00000020=1"}, .after = "step-00000020=2"});
}

TEST_F(CommitTest, WithoutExchangeFailureLeavesTheOldOrTheNewCheckpoint) {
  bool reached = true;
  for (int fail_at = 1; reached; ++fail_at) {
    SCOPED_TRACE(absl::StrCat("system call ", fail_at, " failed"));
    calls = {};
    StartWith({{20, 1}});
    calls = {};
    calls.fail_call = "exchange";
    calls.error_number = EINVAL;
    calls.fail_at = fail_at;
    const absl::Status status = WriteKnownCheckpoint(folder_, plan_, 20, 2).status();
    reached = calls.made >= fail_at;
    calls = {};
    EXPECT_TRUE(status.ok() || reached) << status;
    EXPECT_TRUE(PruneCheckpoints(folder_, 0).status.ok());
    const auto edition = ReadKnownCheckpoint(CheckpointPath(folder_, 20), plan_);
    ASSERT_TRUE(edition.ok()) << edition.status();
    EXPECT_THAT(*edition, AnyOf(2, status.ok() ? 2 : 1));
  }
}

TEST_F(CommitTest, ReplacedCheckpointIsRestoredOnlyIfMissing) {
  StartWith({{10, 1}, {20, 1}, {30, 1}});
  auto replaced = [&](absl::string_view step) {
    return absl::StrCat(folder_, "/", step, ".tmp-replaced.1-0123456789abcdef");
  };
  std::filesystem::rename(folder_ + "/step-00000010", replaced("step-00000010"));
  std::filesystem::copy(folder_ + "/step-00000020", replaced("step-00000020"));

  ASSERT_TRUE(FinishReplacements(folder_).ok());
  EXPECT_EQ(*ListCheckpointSteps(folder_), (std::vector<int64_t>{10, 20, 30}));

  std::filesystem::rename(folder_ + "/step-00000010", replaced("step-00000010"));
  calls.fail_call = "rename";
  calls.error_number = EIO;
  EXPECT_FALSE(PruneCheckpoints(folder_, 0).status.ok());
  EXPECT_TRUE(std::filesystem::exists(replaced("step-00000010"))) << "the removal is retried later";

  calls.fail_call.clear();
  EXPECT_EQ(Contents(), "step-00000010=1 step-00000020=1 step-00000030=1");
  ASSERT_TRUE(RemoveCheckpoint(folder_, 20).ok());
  EXPECT_EQ(Contents(), "step-00000010=1 step-00000030=1");
}

TEST_F(CommitTest, DeathDuringPruningLeavesTheNewest) {
  DieEverywhere(
      [&] {
        StartWith({{10, 1}, {20, 1}, {30, 2}});
      },
      [&] { return PruneCheckpoints(folder_, 1).status; },
      {.before = {"step-00000010=1 step-00000020=1 step-00000030=2",
                  "step-00000020=1 step-00000030=2"},
       .after = "step-00000030=2"});
}

TEST_F(CommitTest, UnremovableFolderStopsNoOtherAndIsRetried) {
  StartWith({{10, 1}, {20, 1}, {30, 1}, {40, 1}});
  for (const char* folder : {"step-00000001.damaged", "step-00000002.damaged", "step-00000020",
                             "step-00000005.tmp-a.1-0123456789abcdef"}) {
    std::filesystem::create_directories(absl::StrCat(folder_, "/", folder));
    WriteWhole(absl::StrCat(folder_, "/", folder, "/.nfs01"), "open elsewhere");
  }
  std::filesystem::create_directories(folder_ + "/step-00000006.tmp-a.1-0123456789abcdef");
  calls.fail_call = "remove";
  calls.fail_path = "/.nfs";
  calls.error_number = EBUSY;

  Pruned pruned = PruneCheckpoints(folder_, 1);

  EXPECT_THAT(std::string(pruned.status.message()),
              AllOf(HasSubstr("step-00000005.tmp-"), HasSubstr("/.nfs01: remove: ")))
      << "the first error";
  EXPECT_EQ(pruned.steps, (std::vector<int64_t>{10, 20, 30}));
  EXPECT_THAT(FilesIn(folder_), ElementsAre(".nfs01", ".nfs01", ".nfs01", ".nfs01", "manifest.json",
                                            "model-00001-of-00001.safetensors",
                                            "optimizer-00001-of-00001.safetensors"));

  absl::Status again = WriteKnownCheckpoint(folder_, plan_, 20, 2).status();
  ASSERT_TRUE(again.ok()) << again;
  pruned = PruneCheckpoints(folder_, 1);
  EXPECT_FALSE(pruned.status.ok());
  EXPECT_EQ(pruned.steps, std::vector<int64_t>{20})
      << "the leftover of the other one is not in the way";

  calls.fail_call.clear();
  EXPECT_EQ(Contents(), "step-00000040=1");
}

TEST_F(CommitTest, CheckpointThatCannotBeRenamedStopsNoOther) {
  StartWith({{10, 1}, {20, 1}, {30, 1}, {40, 1}});
  calls.fail_call = "rename";
  calls.fail_path = "step-00000020.tmp-pruned";
  calls.error_number = EIO;

  const Pruned pruned = PruneCheckpoints(folder_, 1);

  EXPECT_THAT(std::string(pruned.status.message()), HasSubstr("step-00000020"));
  EXPECT_EQ(pruned.steps, (std::vector<int64_t>{10, 30}));
  EXPECT_EQ(Contents(), "step-00000020=1 step-00000040=1");
}

TEST_F(CommitTest, PrunedCheckpointIsGoneEvenIfTheSyncFails) {
  StartWith({{10, 1}, {20, 1}});
  calls.fail_call = "fsync";
  calls.error_number = EIO;

  const Pruned pruned = PruneCheckpoints(folder_, 1);

  EXPECT_FALSE(pruned.status.ok());
  EXPECT_EQ(pruned.steps, std::vector<int64_t>{10});
  calls = {};
  EXPECT_EQ(Contents(), "step-00000020=1");
}

TEST_F(CommitTest, FolderThatAWriterCannotRemoveIsRetried) {
  StartWith({{10, 1}, {20, 1}});
  calls.fail_call = "remove";
  calls.error_number = EBUSY;
  ASSERT_TRUE(WriteKnownCheckpoint(folder_, plan_, 20, 2).ok());
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(absl::StrCat("try ", i));
    auto given_up = CheckpointWriter::Create(plan_, {.directory = folder_, .id = "a", .step = 30});
    EXPECT_TRUE(given_up.ok()) << given_up.status();
  }

  calls = {};
  EXPECT_EQ(Contents(), "step-00000010=1 step-00000020=2");
}

TEST_F(CommitTest, DeathOfASharedWriterLeavesTheNewCheckpointCompleteOrAbsent) {
  DieEverywhere(
      [&] {
        StartWith({{10, 1}});
      },
      [&]() -> absl::Status {
        auto writer = CheckpointWriter::Create(
            plan_,
            {.directory = folder_, .id = "a", .step = 20, .total_steps = 100, .shared = true});
        if (!writer.ok()) return writer.status();
        absl::Status written = WriteKnownSlices(**writer, plan_, 2);
        return written.ok() ? (*writer)->Commit().status() : written;
      },
      {.before = {"step-00000010=1"}, .after = "step-00000010=1 step-00000020=2"});
}

TEST_F(CommitTest, FailureOfAnySystemCallIsAnErrorAndLeavesNoTornCheckpoint) {
  const std::string before = "step-00000010=1", after = "step-00000010=1 step-00000020=2";
  bool reached = true;
  for (int fail_at = 1; reached; ++fail_at) {
    SCOPED_TRACE(absl::StrCat("system call ", fail_at, " failed"));
    calls = {};
    StartWith({{10, 1}});
    calls = {};
    calls.fail_at = fail_at;
    absl::Status status = WriteKnownCheckpoint(folder_, plan_, 20, 2).status();
    reached = calls.made >= fail_at;
    calls = {};
    ASSERT_NE(status.ok(), reached) << status;
    EXPECT_THAT(std::string(status.message()), AnyOf("", HasSubstr(folder_)));
    ASSERT_THAT(Contents(), AnyOf(after, reached ? before : after));
  }
}

TEST_F(CommitTest, FullDeviceIsNoticedEarlyAndTheErrorSaysWhatToDo) {
  calls.fail_call = "fallocate";
  calls.error_number = ENOSPC;

  absl::Status status =
      CheckpointWriter::Create(plan_, {.directory = folder_ + "/job", .id = "a", .step = 7})
          .status();

  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), "STORAGE_FULL");
  EXPECT_TRUE(absl::StrContains(status.message(), "model-00001-of-00001.safetensors")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "keep_last")) << status;
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/job"));
}

TEST_F(CommitTest, EveryDiskFailureHasAReason) {
  for (const char* call : {"create", "open", "pwrite", "fsync", "rename", "pread"}) {
    for (const int error_number : {EIO, ENOENT}) {
      SCOPED_TRACE(absl::StrCat(call, ": ", strerror(error_number)));
      StartWith({});
      calls.fail_call = call;
      calls.error_number = error_number;
      const absl::Status status = WriteKnownCheckpoint(folder_, plan_, 20, 2).status();
      calls = {};

      EXPECT_EQ(ReasonOf(status), "STORAGE_FAILED") << status;
    }
  }
}

TEST_F(CommitTest, WritesToAFileSystemThatCannotReserveSpace) {
  calls.fail_call = "fallocate";
  calls.error_number = EOPNOTSUPP;

  ASSERT_TRUE(WriteKnownCheckpoint(folder_, plan_, 20, 2).ok());

  EXPECT_EQ(Contents(), "step-00000020=2");
}

}  // namespace
}  // namespace muster::commit_test
