// A checkpoint with damage anywhere is refused with the name of the damaged file, or returns the
// saved values.
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/checkpoint_writer.h"
#include "lib/checkpoint/known_checkpoint.h"
#include "lib/checkpoint/sound_checkpoints.h"
#include "lib/status/status.h"

namespace muster::damage_test {
namespace {

constexpr int kEdition = 3;
constexpr int kTruncations = 256;
constexpr int kBitFlips = 2048;

class DamageTest : public testing::Test {
 protected:
  DamageTest() : folder_(TestFolder()) {
    const auto committed = WriteKnownCheckpoint(folder_, plan_, /*step=*/50, kEdition);
    EXPECT_TRUE(committed.ok()) << committed.status();
    path_ = committed->directory();
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      contents_[entry.path().filename()] = ReadWhole(entry.path());
    }
    manifest_ = ManifestJson();
  }

  // A random place in one of the files. Every byte of all files has the same probability.
  struct Place {
    std::string file;
    size_t offset = 0;
  };
  Place RandomPlace(std::mt19937& random) const {
    size_t all = 0;
    for (const auto& [name, content] : contents_) all += content.size();
    size_t at = random() % all;
    for (const auto& [name, content] : contents_) {
      if (at < content.size()) return {name, at};
      at -= content.size();
    }
    return {};
  }

  std::string ManifestJson() const {
    const auto reader = CheckpointReader::Open(path_);
    return reader.ok() ? *(*reader)->manifest().ToJson() : "";
  }

  // Replaces the file's content by `content`. Returns whether the checkpoint was refused.
  bool IsRefused(const std::string& file, const std::string& content) {
    WriteWhole(path_ + "/" + file, content);
    const bool refused = IsRefused(file);
    WriteWhole(path_ + "/" + file, contents_.at(file));
    return refused;
  }

  // Returns whether the checkpoint is refused because of that file. Otherwise its values must be
  // unchanged.
  bool IsRefused(const std::string& file) {
    const absl::Status status = VerifyCheckpoint(path_);
    if (status.ok()) {
      EXPECT_EQ(ReadKnownCheckpoint(path_, plan_).value_or(-1), kEdition);
      EXPECT_EQ(ManifestJson(), manifest_);
    } else {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_EQ(ReasonOf(status), "CHECKPOINT_DAMAGED") << status;
      EXPECT_TRUE(absl::StrContains(status.message(), path_ + "/" + file + ": ")) << status;
    }
    return !status.ok();
  }

  // Overwrites the file in place: file systems sync a file that is truncated and rewritten.
  void Put(const Place& place, char byte) const {
    std::fstream file(path_ + "/" + place.file, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(place.offset)).put(byte).flush();
    ASSERT_TRUE(file.good()) << place.file;
  }

  const v1::JobPlan plan_ = KnownPlan();
  const std::string folder_;
  std::string path_;
  std::map<std::string, std::string> contents_;  // by file
  std::string manifest_;
};

TEST_F(DamageTest, TruncatedFileIsRefused) {
  std::mt19937 random(20261123);
  int refused = 0;
  for (int i = 0; i < kTruncations && !HasFailure(); ++i) {
    const Place cut = RandomPlace(random);
    SCOPED_TRACE(absl::StrCat(cut.file, " cut to ", cut.offset, " bytes"));
    refused += IsRefused(cut.file, contents_.at(cut.file).substr(0, cut.offset));
  }
  for (const auto& [file, content] : contents_) {
    for (const size_t bytes : {size_t{0}, size_t{7}, size_t{8}, content.size() - 3}) {
      SCOPED_TRACE(absl::StrCat(file, " cut to ", bytes, " bytes"));
      EXPECT_TRUE(IsRefused(file, content.substr(0, bytes)));
    }
  }
  // A manifest may end with or without white space.
  EXPECT_GE(refused, kTruncations - 1);
  EXPECT_TRUE(VerifyCheckpoint(path_).ok());
}

TEST_F(DamageTest, FlippedBitIsRefusedOrHarmless) {
  std::mt19937 random(20261124);
  std::map<std::string, int> flips;
  int refused = 0;
  for (int i = 0; i < kBitFlips && !HasFailure(); ++i) {
    const Place place = RandomPlace(random);
    const int bit = static_cast<int>(random() % 8);
    SCOPED_TRACE(absl::StrCat(place.file, " byte ", place.offset, " bit ", bit));
    const char byte = contents_.at(place.file)[place.offset];
    Put(place, static_cast<char>(byte ^ 1 << bit));
    const bool found = IsRefused(place.file);
    Put(place, byte);
    EXPECT_TRUE(found || place.file == "manifest.json") << "hashes cover every bit of the data";
    refused += found;
    ++flips[place.file];
  }
  EXPECT_EQ(flips.size(), 3) << "every file was hit";
  EXPECT_GT(refused, kBitFlips * 9 / 10);
  EXPECT_TRUE(VerifyCheckpoint(path_).ok());
}

TEST_F(DamageTest, MissingFileIsNamed) {
  for (const auto& [file, content] : contents_) {
    std::filesystem::remove(path_ + "/" + file);
    const absl::Status status = VerifyCheckpoint(path_);
    EXPECT_EQ(ReasonOf(status), "CHECKPOINT_DAMAGED") << status;
    EXPECT_TRUE(absl::StrContains(status.message(), file)) << status;
    WriteWhole(path_ + "/" + file, content);
  }
  EXPECT_EQ(ReasonOf(VerifyCheckpoint(folder_ + "/step-00000060")), "CHECKPOINT_DAMAGED");
}

TEST_F(DamageTest, FilesOfAnotherCheckpointAreRefused) {
  const auto other = WriteKnownCheckpoint(folder_, plan_, /*step=*/60, kEdition + 1);
  ASSERT_TRUE(other.ok()) << other.status();
  for (const auto& [file, content] : contents_) {
    if (file == "manifest.json") continue;
    EXPECT_TRUE(IsRefused(file, ReadWhole(other->directory() + "/" + file)));
  }
  std::filesystem::remove_all(path_);
  std::filesystem::copy(other->directory(), path_);

  const absl::Status status = VerifyCheckpoint(path_);

  EXPECT_EQ(ReasonOf(status), "CHECKPOINT_DAMAGED") << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "manifest.json: is of step 60")) << status;
}

TEST_F(DamageTest, CancelledVerificationDoesNotReadToTheEnd) {
  EXPECT_TRUE(absl::IsCancelled(VerifyCheckpoint(path_, [] { return true; })));
}

// Each call verifies on its own thread. In `stop`, each of these threads and each helper waits
// until all of them have come there, so all run at the same time.
TEST_F(DamageTest, ParallelVerificationsShareAFewHelpers) {
  constexpr int kVerifications = 16;
  const auto reader = CheckpointReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  absl::Mutex mu;
  int callers = 0, helpers = 0;
  const auto all = [&] {
    return callers == kVerifications && helpers >= CheckpointReader::kHelpersMax;
  };
  const auto verify = [&] {
    std::set<std::thread::id> known;
    const auto stop = [&, caller = std::this_thread::get_id()] {
      const auto self = std::this_thread::get_id();
      absl::MutexLock lock(&mu);
      if (known.insert(self).second) ++(self == caller ? callers : helpers);
      mu.Await(absl::Condition(&all));
      return false;
    };
    const absl::Status verified = (*reader)->Verify(stop);
    EXPECT_TRUE(verified.ok()) << verified;
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kVerifications; ++i) threads.emplace_back(verify);
  }
  EXPECT_EQ(helpers, CheckpointReader::kHelpersMax);
}

TEST_F(DamageTest, UnreadableCheckpointIsNotReportedAsDamaged) {
  for (const auto& [name, content] : contents_) {
    SCOPED_TRACE(name);
    const std::string file = path_ + "/" + name;
    std::filesystem::remove(file);
    std::filesystem::create_symlink(file, file);

    const absl::Status status = VerifyCheckpoint(path_);

    EXPECT_EQ(ReasonOf(status), "STORAGE_FAILED") << status;
    EXPECT_EQ(status.message(), file + ": open: too many levels of symbolic links");
    EXPECT_EQ(*ListCheckpointSteps(folder_), std::vector<int64_t>{50});
    std::filesystem::remove(file);
    WriteWhole(file, content);
  }
}

TEST_F(DamageTest, PipeDoesNotBlock) {
  for (const auto& [name, content] : contents_) {
    SCOPED_TRACE(name);
    const std::string file = path_ + "/" + name;
    std::filesystem::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);

    const absl::Status status = VerifyCheckpoint(path_);

    EXPECT_EQ(ReasonOf(status), "STORAGE_FAILED") << status;
    EXPECT_EQ(status.message(), file + ": is no regular file");
    std::filesystem::remove(file);
    WriteWhole(file, content);
  }
}

TEST_F(DamageTest, FindsTheUndamagedCheckpoints) {
  for (const int64_t step : {60, 70, 80}) {
    ASSERT_TRUE(WriteKnownCheckpoint(folder_, plan_, step, kEdition).ok());
  }
  WriteWhole(CheckpointPath(folder_, 70) + "/manifest.json", "{}");

  EXPECT_EQ(SoundSteps(folder_, /*except=*/80), (std::vector<int64_t>{60, 50}));
  EXPECT_TRUE(SoundSteps(folder_ + "/absent", 0).empty());
  EXPECT_EQ(SoundOnesBeside(CheckpointPath(folder_, 70)), "; sound beside it: steps 80, 60, 50");
  EXPECT_EQ(SoundOnesBeside(folder_ + "/absent/step-00000001"), "; no other beside it is sound");
}

TEST_F(DamageTest, DamagedCheckpointIsSetAsideAndPrunedWithItsAge) {
  WriteWhole(path_ + "/manifest.json", "{}");
  ASSERT_TRUE(SetDamagedAside(folder_, 50).ok());
  EXPECT_TRUE(ListCheckpointSteps(folder_)->empty());
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged/manifest.json"));

  ASSERT_TRUE(WriteKnownCheckpoint(folder_, plan_, 50, kEdition).ok());
  ASSERT_TRUE(PruneCheckpoints(folder_, /*keep_last=*/1).status.ok());
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged")) << "as new as the newest";
  ASSERT_TRUE(SetDamagedAside(folder_, 50).ok()) << "replaces the one set aside before";
  EXPECT_TRUE(SetDamagedAside(folder_, 50).ok()) << "the second call does nothing";

  ASSERT_TRUE(WriteKnownCheckpoint(folder_, plan_, 60, kEdition).ok());
  ASSERT_TRUE(PruneCheckpoints(folder_, /*keep_last=*/2).status.ok());
  EXPECT_EQ(*ListCheckpointSteps(folder_), std::vector<int64_t>{60});
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged"))
      << "a checkpoint of this step would have been kept";

  ASSERT_TRUE(PruneCheckpoints(folder_, /*keep_last=*/1).status.ok());

  EXPECT_FALSE(std::filesystem::exists(path_ + ".damaged"));
}

}  // namespace
}  // namespace muster::damage_test
