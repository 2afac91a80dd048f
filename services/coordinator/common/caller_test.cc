#include "services/coordinator/common/caller.h"

#include <gtest/gtest.h>

#include <string>

#include "lib/status/status.h"

namespace muster::caller_test {
namespace {

TEST(CallerStamp, IsReadByItsOwnKey) {
  const CallerStamp stamp;
  const auto worker = stamp.Read(stamp.Sign(Identity{Role::kWorker, "w-1"}, "[::1]:40812"));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->certificate, (Identity{Role::kWorker, "w-1"}));
  EXPECT_EQ(worker->ToString(), "worker/w-1 from [::1]:40812");
  const auto nobody = stamp.Read(stamp.Sign(std::nullopt, "10.1.2.3:7"));
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  EXPECT_FALSE(nobody->certificate.has_value());
}

TEST(CallerStamp, RejectsStampsOfAnotherKey) {
  const CallerStamp stamp, other;
  const std::string own = stamp.Sign(std::nullopt, "10.1.2.3:7");
  std::string as_admin = own;
  as_admin.replace(0, 1, "admin/ann");
  for (const std::string& forged :
       {std::string(), std::string("-"), std::string("admin/ann 10.1.2.3:7"), as_admin, own + "0",
        own.substr(0, own.size() - 1), other.Sign(Identity{Role::kAdmin, "ann"}, "10.1.2.3:7"),
        own.substr(0, own.rfind(' ') + 1)}) {
    EXPECT_FALSE(stamp.Read(forged).ok()) << forged;
  }
}

TEST(CheckSpeaksAs, OnlyAsItself) {
  const auto speaks = [](const std::optional<Identity>& who, Role role, const std::string& name) {
    return CheckSpeaksAs(who, role, name).ok();
  };
  EXPECT_TRUE(speaks(Identity{Role::kPs, "p-1"}, Role::kPs, "p-1"));
  EXPECT_TRUE(speaks(Identity{Role::kPs, ""}, Role::kPs, "p-1"));
  EXPECT_TRUE(speaks(std::nullopt, Role::kPs, "p-1"));
  EXPECT_FALSE(speaks(Identity{Role::kPs, "p-2"}, Role::kPs, "p-1"));
  EXPECT_FALSE(speaks(Identity{Role::kWorker, ""}, Role::kPs, "p-1"));
  EXPECT_FALSE(speaks(Identity{Role::kWorker, "p-1"}, Role::kPs, "p-1"));
  EXPECT_FALSE(speaks(Identity{Role::kAdmin, "a"}, Role::kAdmin, "a")) << "an admin is no member";
  EXPECT_EQ(ReasonOf(CheckSpeaksAs(Identity{Role::kPs, "a"}, Role::kPs, "b")), "NOT_YOUR_NAME");
}

}  // namespace
}  // namespace muster::caller_test
