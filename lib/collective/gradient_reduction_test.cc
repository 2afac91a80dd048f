#include "lib/collective/gradient_reduction.h"

#include <atomic>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/collective/shared_memory_communicator.h"
#include "lib/status/status.h"

namespace muster::gradient_reduction_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Values whose sum depends on the order of the additions.
float Value(int device, int64_t i) {
  return (device % 2 ? -1.0f : 1.0f) * 1e4f / static_cast<float>(1 + device + i % 101);
}

// Devices with gradients of the given sizes, in small buckets, divided into pieces of 100 floats.
struct Node {
  explicit Node(int devices, const std::vector<int64_t>& elements)
      : elements(elements), group(devices), reduced(0) {
    std::vector<int> order(elements.size());
    std::iota(order.rbegin(), order.rend(), 0);  // the last parameter's gradient is final first
    layout = LayOutGradients(elements, order, devices, {.first_bytes = 1024, .bytes = 8192});
    for (int device = 0; device < devices; ++device) {
      memory.emplace_back(layout.elements);
      for (size_t p = 0; p < elements.size(); ++p) Fill(device, static_cast<int>(p));
    }
    for (size_t p = 0; p < elements.size(); ++p) {
      for (int64_t at = 0; at < elements[p]; at += 100) {
        pieces.push_back(
            {layout.offsets[p] + at, layout.offsets[p] + std::min<int64_t>(at + 100, elements[p])});
      }
    }
    reduced = std::vector<std::atomic<int>>(pieces.size());
  }

  void Fill(int device, int p) {
    for (int64_t i = 0; i < elements[p]; ++i) {
      memory[device][layout.offsets[p] + i] = Value(device, i);
    }
  }

  GradientReduction::Options Options() {
    GradientReduction::Options options{.layout = layout, .pieces = pieces};
    for (auto& device : memory) options.memory.push_back(device.data());
    for (size_t device = 0; memory.size() > 1 && device < memory.size(); ++device) {
      options.communicators.push_back(group.Join(static_cast<int>(device)));
    }
    options.reduced = [this](int piece, int64_t) {
      ++reduced[piece];
      ++reduced_in_all;
      reduced_in_all.notify_all();
      return absl::OkStatus();
    };
    return options;
  }

  std::vector<int> counts() const { return {reduced.begin(), reduced.end()}; }

  void AwaitReduced(int count) {
    for (int seen = reduced_in_all; seen < count; seen = reduced_in_all) reduced_in_all.wait(seen);
  }

  const std::vector<int64_t> elements;
  SharedMemoryGroup group;
  GradientLayout layout;
  std::vector<std::vector<float>> memory;
  std::vector<GradientReduction::Piece> pieces;
  std::vector<std::atomic<int>> reduced;
  std::atomic<int> reduced_in_all = 0;
};

TEST(GradientReductionTest, SumsInDeviceOrderForAnyOrderOfArrival) {
  for (int last = 0; last < 3; ++last) {
    Node node(3, {1, 7, 2048, 5001, 100});
    GradientReduction reduction(node.Options());
    for (const int device : {(last + 1) % 3, (last + 2) % 3, last}) {
      for (int p = 4; p >= 0; --p) ASSERT_TRUE(reduction.Contribute(device, p, 0).ok());
    }
    node.AwaitReduced(static_cast<int>(node.pieces.size()));
    for (size_t p = 0; p < node.elements.size(); ++p) {
      for (int64_t i = 0; i < node.elements[p]; ++i) {
        ASSERT_EQ(node.memory[0][node.layout.offsets[p] + i],
                  (Value(0, i) + Value(1, i)) + Value(2, i))
            << "parameter " << p << ", element " << i;
      }
    }
  }
}

TEST(GradientReductionTest, ManyStepsAnnounceEveryPieceOncePerStep) {
  constexpr int kDevices = 4, kSteps = 20;
  Node node(kDevices, std::vector<int64_t>(50, 301));
  GradientReduction reduction(node.Options());
  for (int step = 1; step <= kSteps; ++step) {
    {
      std::vector<std::jthread> devices;
      for (int device = 0; device < kDevices; ++device) {
        devices.emplace_back([&, device] {
          for (int p = 49; p >= 0; --p) {
            node.Fill(device, p);
            EXPECT_TRUE(reduction.Contribute(device, p, 0).ok());
          }
        });
      }
    }
    node.AwaitReduced(step * static_cast<int>(node.pieces.size()));
    for (const auto& count : node.reduced) ASSERT_EQ(count, step);
  }
}

// Each rank writes the elements of its own parity.
TEST(GradientReductionTest, AGradientIsFinalWhenAllRanksOfADeviceHaveContributed) {
  constexpr int kRanks = 2, kSteps = 20;
  for (const int devices : {1, 2}) {
    Node node(devices, std::vector<int64_t>(50, 301));
    GradientReduction::Options options = node.Options();
    options.ranks = kRanks;
    options.reduced = [&, reduced = std::move(options.reduced)](int piece, int64_t step) mutable {
      for (int64_t at = node.pieces[piece].begin; at < node.pieces[piece].end; ++at) {
        EXPECT_EQ(node.memory[0][at], devices * (at % kRanks + step)) << at;
      }
      return reduced(piece, step);
    };
    GradientReduction reduction(std::move(options));
    for (int step = 0; step < kSteps; ++step) {
      {
        std::vector<std::jthread> threads;
        for (int thread = 0; thread < devices * kRanks; ++thread) {
          threads.emplace_back([&, device = thread / kRanks, rank = thread % kRanks] {
            for (int p = 49; p >= 0; --p) {
              const int64_t begin = node.layout.offsets[p], end = begin + node.elements[p];
              for (int64_t at = begin + (begin + rank) % kRanks; at < end; at += kRanks) {
                node.memory[device][at] = static_cast<float>(at % kRanks + step);
              }
              EXPECT_TRUE(reduction.Contribute(device, p, step).ok());
            }
            EXPECT_TRUE(reduction.AwaitAnnounced(step).ok());
          });
        }
      }
      for (const auto& count : node.reduced) ASSERT_EQ(count, step + 1);
    }
  }
}

TEST(GradientReductionTest, ARankWaitsForTheOthersToContribute) {
  Node node(1, {100});
  GradientReduction::Options options = node.Options();
  options.ranks = 2;
  GradientReduction reduction(std::move(options));
  ASSERT_TRUE(reduction.Contribute(0, 0, 0).ok());
  EXPECT_THAT(node.counts(), Each(0));
  std::jthread other([&] { EXPECT_TRUE(reduction.Contribute(0, 0, 0).ok()); });
  ASSERT_TRUE(reduction.AwaitAnnounced(0).ok());
  EXPECT_THAT(node.counts(), Each(1));
}

TEST(GradientReductionTest, AwaitAnnouncedReturnsWhenEveryFullBucketIsAnnounced) {
  Node node(3, std::vector<int64_t>(20, 1000));
  GradientReduction reduction(node.Options());
  for (int device = 0; device < 3; ++device) {
    for (int p = 19; p >= 0; --p) ASSERT_TRUE(reduction.Contribute(device, p, 0).ok());
  }
  ASSERT_TRUE(reduction.Contribute(1, 19, /*step=*/1)
                  .ok());  // belongs to the next step, so it does not matter
  ASSERT_TRUE(reduction.AwaitAnnounced(0).ok());
  EXPECT_THAT(node.counts(), Each(1));
}

// No device waits for the sums of frozen parameters, so a device may be steps ahead with them.
TEST(GradientReductionTest, BucketsOfFrozenParametersAloneAreNotReduced) {
  Node node(2, {2048, 2048, 2048, 40});  // the last parameter is alone in the first bucket
  ASSERT_EQ(node.layout.buckets.size(), 4);
  GradientReduction::Options options = node.Options();
  options.frozen = {true, true, true, false};
  options.announce_timeout = absl::Seconds(10);
  absl::Notification announced, go_on;
  options.reduced = [&, counted = std::move(options.reduced)](int piece, int64_t step) mutable {
    absl::Status status = counted(piece, step);
    if (step > 0 || piece + 1 < std::ssize(node.pieces)) return status;
    announced.Notify();  // from here on devices may enter the next step
    go_on.WaitForNotification();
    return status;
  };
  GradientReduction reduction(std::move(options));
  const auto contribute = [&](int64_t step, int p) {
    for (const int device : {0, 1}) ASSERT_TRUE(reduction.Contribute(device, p, step).ok());
  };
  contribute(0, 3);
  announced.WaitForNotification();  // one lane is blocked in step 0
  for (int p = 2; p >= 0; --p) contribute(0, p);
  for (int p = 3; p >= 0; --p) contribute(1, p);
  go_on.Notify();
  for (int64_t step = 0; step < 2; ++step) EXPECT_TRUE(reduction.AwaitAnnounced(step).ok());

  EXPECT_EQ(node.counts().back(), 2);
  EXPECT_EQ(node.reduced_in_all, 2) << "only the last parameter's piece";
}

// A bucket with a trained parameter is reduced as a whole, because its memory is summed as a whole.
TEST(GradientReductionTest, AFrozenParameterInABucketWithOthersIsSummedWithThem) {
  Node node(2, {40, 40});
  ASSERT_EQ(node.layout.buckets.size(), 1);
  GradientReduction::Options options = node.Options();
  options.frozen = {true, false};
  GradientReduction reduction(std::move(options));
  for (const int device : {0, 1}) ASSERT_TRUE(reduction.Contribute(device, 1, 0).ok());
  ASSERT_TRUE(reduction.AwaitAnnounced(0).ok());
  EXPECT_THAT(node.counts(), Each(0)) << "the other gradient of the bucket is not final";
  for (const int device : {0, 1}) ASSERT_TRUE(reduction.Contribute(device, 0, 0).ok());
  ASSERT_TRUE(reduction.AwaitAnnounced(0).ok());
  EXPECT_THAT(node.counts(), Each(1));
}

TEST(GradientReductionTest, ATimeoutNamesTheDevicesAndTheirBuckets) {
  Node node(2, {40});
  GradientReduction::Options options = node.Options();
  options.announce_timeout = absl::Milliseconds(20);
  options.rounds_per_step = 4;
  GradientReduction reduction(std::move(options));
  ASSERT_TRUE(reduction.Contribute(1, 0, 7).ok());  // device 0 never contributes

  absl::Status late = reduction.AwaitAnnounced(7);
  while (!absl::StrContains(late.message(), "device 1 is at bucket 0 of 1")) {
    late = reduction.AwaitAnnounced(7);  // device 1's thread may not have started yet
  }

  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_EQ(ReasonOf(late), "COLLECTIVE_TIMEOUT");
  EXPECT_THAT(std::string(late.message()), testing::HasSubstr("step 1 (share 4 of 4)"));
  EXPECT_THAT(std::string(late.message()), testing::HasSubstr("20ms"));
}

TEST(GradientReductionTest, ASingleDeviceAnnouncesEachParameterAtOnce) {
  Node node(1, {250, 50});
  GradientReduction reduction(node.Options());
  ASSERT_TRUE(reduction.Contribute(0, 1, 0).ok());
  EXPECT_THAT(node.counts(), ElementsAre(0, 0, 0, 1));
  ASSERT_TRUE(reduction.Contribute(0, 0, 0).ok());
  EXPECT_THAT(node.counts(), Each(1));
}

TEST(GradientReductionTest, SlicesThatDevicesReduceThemselvesCompleteThePieces) {
  Node node(2, {64, 36});  // one bucket of 112 -> 128 floats: slices of 64
  GradientReduction reduction(node.Options());
  ASSERT_EQ(node.layout.buckets.size(), 1);
  ASSERT_TRUE(reduction.SliceReduced(1, 0, 0).ok());
  EXPECT_THAT(node.counts(), ElementsAre(0, 0));  // both pieces begin in the first slice
  ASSERT_TRUE(reduction.SliceReduced(0, 0, 0).ok());
  EXPECT_THAT(node.counts(), ElementsAre(1, 1));
}

TEST(GradientReductionTest, AbortStopsTheOtherDevicesAlsoInsideAReduction) {
  Node node(2, {40});
  GradientReduction reduction(node.Options());
  ASSERT_TRUE(reduction.Contribute(0, 0, 0).ok());  // device 0's thread waits for device 1 now
  reduction.Abort(absl::InternalError("device 1: out of memory"));
  EXPECT_EQ(reduction.Contribute(1, 0, 0), absl::InternalError("device 1: out of memory"));
  EXPECT_THAT(node.counts(), Each(0));
}

TEST(GradientReductionTest, CanBeDestroyedDuringAReduction) {
  Node node(3, {40, 4000});
  GradientReduction reduction(node.Options());
  for (const int device : {0, 2}) {  // their threads wait for device 1
    for (int p = 1; p >= 0; --p) ASSERT_TRUE(reduction.Contribute(device, p, 0).ok());
  }
}

TEST(GradientReductionTest, AnErrorOfReducedIsReturnedToTheDevices) {
  Node node(1, {10});
  auto options = node.Options();
  options.reduced = [](int, int64_t) { return absl::UnavailableError("ps-0 is gone"); };
  GradientReduction reduction(std::move(options));
  EXPECT_EQ(reduction.Contribute(0, 0, 0), absl::UnavailableError("ps-0 is gone"));
}

}  // namespace
}  // namespace muster::gradient_reduction_test
