#include "lib/collective/gradient_reduction.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace muster {
namespace {

// Values whose sum depends on the order of the additions.
float Value(int device, int parameter, int i) {
  return (device % 2 ? -1.0f : 1.0f) * 1e4f / (1 + device + 3 * parameter + i % 101);
}

struct Buffers {
  Buffers(int devices, const std::vector<int>& sizes) {
    for (int d = 0; d < devices; ++d) {
      memory.emplace_back();
      spans.emplace_back();
      for (int p = 0; p < static_cast<int>(sizes.size()); ++p) {
        memory[d].emplace_back(sizes[p]);
        for (int i = 0; i < sizes[p]; ++i) memory[d][p][i] = Value(d, p, i);
      }
      for (auto& parameter : memory[d]) spans[d].push_back(absl::MakeSpan(parameter));
    }
  }
  std::vector<std::vector<std::vector<float>>> memory;
  std::vector<std::vector<absl::Span<float>>> spans;
};

TEST(GradientReductionTest, SumsInDeviceOrderWhoeverComesLast) {
  const std::vector<int> sizes = {1, 7, 2048, 5001};
  for (int last = 0; last < 3; ++last) {
    Buffers buffers(3, sizes);
    std::vector<int> reduced;
    GradientReduction reduction({.gradients = buffers.spans, .reduced = [&](int p) {
                                   reduced.push_back(p);
                                   return absl::OkStatus();
                                 }});
    for (int p = 3; p >= 0; --p) {
      for (int d = 0; d < 3; ++d) {
        if (d == last) continue;
        ASSERT_TRUE(reduction.Contribute(d, p).ok());
      }
      ASSERT_TRUE(reduction.Contribute(last, p).ok());
    }
    EXPECT_EQ(reduced, (std::vector<int>{3, 2, 1, 0}));
    for (int p = 0; p < 4; ++p) {
      for (int i = 0; i < sizes[p]; ++i) {
        EXPECT_EQ(buffers.memory[0][p][i], (Value(0, p, i) + Value(1, p, i)) + Value(2, p, i));
      }
    }
  }
}

TEST(GradientReductionTest, ManyThreadsReduceEveryParameterOfEveryStepOnce) {
  constexpr int kDevices = 4, kParameters = 50, kSteps = 20;
  Buffers buffers(kDevices, std::vector<int>(kParameters, 3));
  std::vector<std::atomic<int>> reduced(kParameters);
  GradientReduction reduction({.gradients = buffers.spans, .reduced = [&](int p) {
                                 ++reduced[p];
                                 return absl::OkStatus();
                               }});
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::jthread> devices;
    for (int d = 0; d < kDevices; ++d) {
      devices.emplace_back([&, d] {
        for (int p = 0; p < kParameters; ++p) EXPECT_TRUE(reduction.Contribute(d, p).ok());
      });
    }
  }
  for (const auto& count : reduced) EXPECT_EQ(count, kSteps);
}

TEST(GradientReductionTest, AbortStopsTheOtherDevices) {
  Buffers buffers(2, {4});
  GradientReduction reduction(
      {.gradients = buffers.spans, .reduced = [](int) { return absl::OkStatus(); }});
  ASSERT_TRUE(reduction.Contribute(0, 0).ok());
  reduction.Abort(absl::InternalError("device 1: out of memory"));
  EXPECT_EQ(reduction.Contribute(1, 0), absl::InternalError("device 1: out of memory"));
}

}  // namespace
}  // namespace muster
