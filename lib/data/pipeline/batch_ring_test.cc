#include "lib/data/pipeline/batch_ring.h"

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"

namespace muster::batch_ring_test {
namespace {

TEST(BatchRingTest, ReadsBatchesAheadIntoFreeSlots) {
  DecodePool pool(/*threads=*/3);
  std::vector<std::atomic<int64_t>> sums(3);
  std::atomic<int64_t> begun = 7;
  BatchRing ring({.pool = &pool,
                  .slots = 3,
                  .first = 7,
                  .end = 40,
                  .begin =
                      [&](int64_t batch) {
                        EXPECT_EQ(batch, begun++);
                        sums[batch % 3] = 0;
                        return batch % 4 + 1;
                      },
                  .read =
                      [&](int64_t batch, int64_t) {
                        sums[batch % 3] += batch;
                        return absl::OkStatus();
                      }});
  for (int64_t batch = 7; batch < 40; ++batch) {
    EXPECT_EQ(ring.next(), batch);
    ASSERT_TRUE(ring.Next().ok());
    EXPECT_EQ(sums[batch % 3], batch * (batch % 4 + 1));
    EXPECT_LE(begun, batch + 3) << "the slot of a batch in use is not free";
  }
  EXPECT_EQ(begun, 40);
}

TEST(BatchRingTest, TellsWhenABatchWasReadAndNotWhenItWasTaken) {
  DecodePool pool(/*threads=*/1);
  absl::Notification all_read;
  BatchRing ring({.pool = &pool,
                  .slots = 2,
                  .first = 0,
                  .end = 2,
                  .begin = [](int64_t) { return 1; },
                  .read = [](int64_t, int64_t) { return absl::OkStatus(); },
                  .ended =
                      [&](int64_t batch) {
                        if (batch == 1) all_read.Notify();
                      }});
  all_read.WaitForNotification();
  const absl::Duration before_taken = SteadyNow();
  ASSERT_TRUE(ring.Next().ok());
  const absl::Duration first = ring.read_at();
  ASSERT_TRUE(ring.Next().ok());
  EXPECT_LE(first, ring.read_at());
  EXPECT_LE(ring.read_at(), before_taken);
}

// The thread of part 2 fails first. The error of part 1 is the one that every run gives.
TEST(BatchRingTest, ReturnsTheErrorOfTheFirstFailedPart) {
  DecodePool pool(/*threads=*/2);
  absl::Notification last_failed;
  BatchRing ring({.pool = &pool,
                  .slots = 2,
                  .first = 0,
                  .begin = [](int64_t) { return 2; },
                  .read = [&](int64_t batch, int64_t part) -> absl::Status {
                    if (batch != 1) return absl::OkStatus();
                    if (part == 0) last_failed.WaitForNotification();
                    if (part == 1) last_failed.Notify();
                    return absl::DataLossError(absl::StrCat("part ", part));
                  }});
  EXPECT_TRUE(ring.Next().ok());
  for (int call = 0; call < 2; ++call) {
    EXPECT_EQ(ring.Next().message(), "part 0");
    EXPECT_FALSE(ring.is_read());
    EXPECT_EQ(ring.next(), 1);
  }
}

}  // namespace
}  // namespace muster::batch_ring_test
