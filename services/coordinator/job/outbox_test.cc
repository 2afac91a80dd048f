#include "services/coordinator/job/outbox.h"

#include <gtest/gtest.h>

namespace muster::outbox_test {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(OutboxTest, DirectiveIsDueAgainIfItIsOldOrDifferentOrForgotten) {
  Outbox outbox;
  v1::Directive pause, snapshot;
  pause.mutable_pause();
  snapshot.mutable_snapshot()->set_snapshot(1);
  EXPECT_TRUE(outbox.IsDue("w-0", pause, kStart));
  EXPECT_FALSE(outbox.IsDue("w-0", pause, kStart + absl::Seconds(1)));
  EXPECT_TRUE(outbox.IsDue("w-1", pause, kStart + absl::Seconds(1))) << "another member";
  EXPECT_TRUE(outbox.IsDue("w-0", pause, kStart + Outbox::kResend));

  EXPECT_TRUE(outbox.IsDue("w-0", snapshot, kStart + Outbox::kResend));
  EXPECT_FALSE(outbox.IsDue("w-0", snapshot, kStart + Outbox::kResend));
  snapshot.mutable_snapshot()->set_snapshot(2);
  EXPECT_TRUE(outbox.IsDue("w-0", snapshot, kStart + Outbox::kResend));

  outbox.Forget("w-0");
  EXPECT_TRUE(outbox.IsDue("w-0", snapshot, kStart + Outbox::kResend));
  outbox.ForgetAll();
  EXPECT_TRUE(outbox.IsDue("w-1", pause, kStart + Outbox::kResend));
}

}  // namespace
}  // namespace muster::outbox_test
