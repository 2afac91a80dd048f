#include "services/coordinator/store_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StoreLocationTest, NothingSaidIsSqliteInTheUsualFile) {
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

TEST(StoreLocationTest, WhatIsNeitherIsRefusedWithWhatIsExpected) {
  for (const char* text : {"redis://a:1", "etcd://", "etcd://a", "etcd://a:1,,b:1", "etcd://:2379",
                           "etcd://a:", "sqlite:", "/disk/jobs.db"}) {
    const auto location = StoreLocation::Parse(text, "usual");
    EXPECT_TRUE(absl::IsInvalidArgument(location.status())) << text;
    EXPECT_THAT(std::string(location.status().message()), HasSubstr("sqlite:PATH, or etcd://"));
  }
}

}  // namespace
}  // namespace muster
