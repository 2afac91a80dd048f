#include "lib/data/pipeline/evaluation_stream.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "lib/data/pipeline/row_layout.h"

namespace muster::evaluation_stream_test {
namespace {

constexpr int64_t kRowBytes = 8;

// The only input of a held-out sample is its number.
class HeldOut : public Dataset {
 public:
  explicit HeldOut(bool is_slow) : is_slow_(is_slow) {}
  int64_t samples() const override { return 1; }
  int64_t evaluation_samples() const override { return 100; }
  bool is_slow() const override { return is_slow_; }
  absl::Status Read(absl::Span<const SampleRef>, Rows) const override { return absl::OkStatus(); }
  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t sample = first + i;
      std::memcpy(rows[0].data() + i * kRowBytes, &sample, kRowBytes);
      if (sample == damaged) return absl::DataLossError("is damaged");
      if (sample == awaited) begun.Notify();
    }
    return absl::OkStatus();
  }

  int64_t damaged = -1;
  int64_t awaited = -1;
  mutable absl::Notification begun;  // reading the sample `awaited`

 private:
  const bool is_slow_;
};

class EvaluationStreamTest : public testing::Test {
 protected:
  EvaluationStream::Options Options(const HeldOut& dataset, int64_t first, int64_t count,
                                    int64_t at_once) {
    memory_.resize(EvaluationStream::kBatches * BytesOfRows(at_once, {kRowBytes}));
    return {.dataset = &dataset,
            .pool = &pool_,
            .cancelled = &cancelled_,
            .memory = memory_.data(),
            .row_bytes = {kRowBytes},
            .first = first,
            .count = count,
            .at_once = at_once};
  }

  std::atomic<bool> cancelled_ = false;

 private:
  std::vector<std::byte> memory_;
  DecodePool pool_{/*threads=*/3};
};

TEST_F(EvaluationStreamTest, GivesEverySampleOnceInOrder) {
  for (const bool is_slow : {false, true}) {
    for (const int64_t at_once : {1, 7, 53}) {
      const HeldOut dataset(is_slow);
      EvaluationStream stream(Options(dataset, /*first=*/5, /*count=*/53, at_once));
      for (int64_t done = 0; done < 53; done += at_once) {
        const auto rows = stream.Next().value();
        ASSERT_EQ(rows.size(), 1);
        ASSERT_EQ(rows[0].size(), kRowBytes * std::min(at_once, 53 - done));
        for (size_t i = 0; i < rows[0].size() / kRowBytes; ++i) {
          int64_t sample;
          std::memcpy(&sample, rows[0].data() + i * kRowBytes, kRowBytes);
          EXPECT_EQ(sample, 5 + done + static_cast<int64_t>(i));
        }
      }
    }
  }
}

TEST_F(EvaluationStreamTest, ReadsTheNextBatchWhileOneIsUsed) {
  HeldOut dataset(/*is_slow=*/true);
  dataset.awaited = 11;  // the last sample of the second batch
  EvaluationStream stream(Options(dataset, /*first=*/0, /*count=*/30, /*at_once=*/6));
  ASSERT_TRUE(stream.Next().ok());
  dataset.begun.WaitForNotification();
}

TEST_F(EvaluationStreamTest, ReturnsTheErrorOfADamagedSample) {
  HeldOut dataset(/*is_slow=*/true);
  dataset.damaged = 9;
  EvaluationStream stream(Options(dataset, /*first=*/0, /*count=*/30, /*at_once=*/6));
  ASSERT_TRUE(stream.Next().ok());
  EXPECT_TRUE(absl::IsDataLoss(stream.Next().status()));
}

TEST_F(EvaluationStreamTest, ACancelledStreamReadsNoMore) {
  const HeldOut dataset(/*is_slow=*/true);
  cancelled_ = true;
  EvaluationStream stream(Options(dataset, /*first=*/0, /*count=*/30, /*at_once=*/6));
  EXPECT_TRUE(absl::IsCancelled(stream.Next().status()));
}

}  // namespace
}  // namespace muster::evaluation_stream_test
