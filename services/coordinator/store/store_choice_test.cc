#include "services/coordinator/store/store_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "services/coordinator/store/jobs_folder.h"
#include "services/coordinator/store/sqlite_store.h"

ABSL_DECLARE_FLAG(bool, adopt_state_dir);

namespace muster::store_choice_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StoreLocationTest, DefaultsToSqliteInTheUsualFile) {
  const auto location = StoreLocation::Parse("", "state/coordinator.db");
  ASSERT_TRUE(location.ok()) << location.status();
  EXPECT_EQ(location->file, "state/coordinator.db");
}

TEST(StoreLocationTest, SqliteHasAPath) {
  EXPECT_EQ(StoreLocation::Parse("sqlite:/disk/jobs.db", "usual")->file, "/disk/jobs.db");
}

TEST(StoreLocationTest, EtcdHasServersAndAPrefix) {
  const auto location = StoreLocation::Parse("etcd://a:2379,[::1]:2379/team/one", "usual");
  ASSERT_TRUE(location.ok()) << location.status();
  EXPECT_THAT(location->file, IsEmpty());
  EXPECT_THAT(location->servers, ElementsAre("a:2379", "[::1]:2379"));
  EXPECT_EQ(location->prefix, "/team/one/");
  for (const char* without : {"etcd://a:2379", "etcd://a:2379/"}) {
    EXPECT_EQ(StoreLocation::Parse(without, "usual")->prefix, "/muster/") << without;
  }
}

TEST(StoreLocationTest, RefusesOtherFormsAndNamesTheExpectedOnes) {
  for (const char* text : {"redis://a:1", "etcd://", "etcd://a", "etcd://a:1,,b:1", "etcd://:2379",
                           "etcd://a:", "sqlite:", "/disk/jobs.db"}) {
    const auto location = StoreLocation::Parse(text, "usual");
    EXPECT_TRUE(absl::IsInvalidArgument(location.status())) << text;
    EXPECT_THAT(std::string(location.status().message()), HasSubstr("sqlite:PATH, or etcd://"));
  }
}

class JobsOfAStoreTest : public ::testing::Test {
 protected:
  JobsOfAStoreTest() {
    EXPECT_NE(mkdtemp(path_.data()), nullptr);
    auto choice = StoreChoice::FromFlags(path_);
    EXPECT_TRUE(choice.ok()) << choice.status();
    choice_ = *std::move(choice);
  }
  absl::Status Check(const std::vector<std::string>& with_checkpoints) const {
    const auto folder = StateFolder::Open(path_);
    EXPECT_TRUE(folder.ok()) << folder.status();
    return CheckJobsFolder(*folder, with_checkpoints);
  }

  std::string path_ = ::testing::TempDir() + "/choice-XXXXXX";
  std::unique_ptr<StoreChoice> choice_;
};

TEST_F(JobsOfAStoreTest, AdoptsAnotherJobsFolderIfTheFlagSaysSo) {
  ASSERT_TRUE(Check({}).ok());
  std::ofstream(path_ + "/jobs/folder.id") << "another";
  ASSERT_TRUE(choice_->Open({}).ok());
  EXPECT_FALSE(Check({"a-1"}).ok());
  absl::SetFlag(&FLAGS_adopt_state_dir, true);
  ASSERT_TRUE(choice_->Open({}).ok());
  absl::SetFlag(&FLAGS_adopt_state_dir, false);
  EXPECT_TRUE(Check({"a-1"}).ok());
}

TEST_F(JobsOfAStoreTest, ARestoreAdoptsThePresentJobsFolder) {
  ASSERT_TRUE(Check({}).ok());
  std::ofstream(path_ + "/jobs/folder.id") << "of the copy";
  ASSERT_TRUE(choice_->Restore(false, [](Store&) { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(Check({"a-1"}).ok());
}

TEST_F(JobsOfAStoreTest, DoesNotUpgradeAnOlderStoreToReadItsTokens) {
  const std::string file = path_ + "/coordinator.db";
  std::vector<char> header(100);
  header[63] = 3;  // the schema
  std::ofstream(file, std::ios::binary).write(header.data(), 100);
  EXPECT_EQ(SqliteStore::SchemaIn(file), 3);
  const auto tokens = choice_->Tokens();
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_TRUE(tokens->empty());
  EXPECT_FALSE(std::ifstream(file + "-wal").good()) << "it was opened";
  EXPECT_EQ(SqliteStore::SchemaIn(file), 3);
}

TEST_F(JobsOfAStoreTest, ARestoredStoreHasThePresentFolder) {
  ASSERT_TRUE(choice_->Restore(false, [](Store&) { return absl::OkStatus(); }).ok());
  EXPECT_TRUE(Check({"a-1"}).ok());
}

}  // namespace
}  // namespace muster::store_choice_test
