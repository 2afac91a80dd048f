// Random inputs of kernel tests, and the comparison of a kernel's floats with float64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/philox.h"
#include "kernels/threads.h"

namespace muster::kernels {

using Floats = std::vector<float>;

// Returns standard normal numbers, different for every stream.
inline Floats Normals(int64_t n, uint64_t stream) {
  Floats values(n);
  for (int64_t i = 0; i < n; ++i) {
    const auto words = RandomWords(/*seed=*/1, stream, i);
    values[i] = static_cast<float>(StandardNormal(words[0], words[1]));
  }
  return values;
}

inline std::vector<int32_t> RandomIds(int64_t n, int64_t limit, uint64_t stream) {
  std::vector<int32_t> ids(n);
  for (int64_t i = 0; i < n; ++i) ids[i] = RandomWords(/*seed=*/1, stream, i)[0] % limit;
  return ids;
}

inline std::vector<double> Wide(const Floats& values) { return {values.begin(), values.end()}; }

// Expects every element to be within (8 + sqrt(terms)) 2^-23 of the largest expected magnitude.
// That covers a few roundings of each operand, and the random walk of the roundings of a sum of
// `terms` f32 terms in any order.
inline void ExpectClose(const Floats& actual, const std::vector<double>& expected,
                        int64_t terms = 1) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 1e-30;
  for (double v : expected) largest = std::max(largest, std::abs(v));
  const double tolerance = (8 + std::sqrt(double(terms))) * 0x1p-23 * largest;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance) << "element " << i << " of " << actual.size();
  }
}

// Returns d (dy · f(x)) / dx by central differences in float64. f maps a std::vector<double> to
// another. The error is about 1e-8 of the largest element.
template <typename F>
std::vector<double> Gradient(F f, std::vector<double> x, const std::vector<double>& dy) {
  std::vector<double> gradient;
  for (double& v : x) {
    const double value = v, h = 1e-5 * std::max(1.0, std::abs(v));
    v = value + h;
    const std::vector<double> above = f(x);
    v = value - h;
    const std::vector<double> below = f(x);
    v = value;
    double sum = 0;
    for (size_t i = 0; i < dy.size(); ++i) sum += dy[i] * (above[i] - below[i]);
    gradient.push_back(sum / (2 * h));
  }
  return gradient;
}

// Expects run() to return floats with the same bits on 1, 2 and 5 threads.
template <typename F>
void ExpectSameOnAnyThreads(F run) {
  SetThreads(1);
  const Floats expected = run();
  for (int threads : {2, 5}) {
    SetThreads(threads);
    const Floats actual = run();
    ASSERT_EQ(actual.size(), expected.size());
    EXPECT_EQ(std::memcmp(actual.data(), expected.data(), actual.size() * sizeof(float)), 0)
        << threads << " threads";
  }
  SetThreads(1);
}

}  // namespace muster::kernels
