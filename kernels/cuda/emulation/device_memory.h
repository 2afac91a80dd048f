// Tensors of emulated kernels, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/comparison.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/emulation/block.h"
#include "kernels/cuda/out_of_range.h"
#include "kernels/cuda/type.h"

namespace muster::kernels::cuda::emulation {

// The memory of a tensor, aligned as cudaMalloc() aligns it. All bits are set at first: NaN in
// every floating type, -1 as an index. Guard bytes before and after it must stay unchanged. With a
// sanitizer there are no guard bytes.
class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    EXPECT_EQ(posix_memalign(&memory, 256, bytes + 2 * kGuard), 0);
    std::memset(memory, 0xff, bytes + 2 * kGuard);
    memory_ = static_cast<uint8_t*>(memory);
  }
  explicit DeviceMemory(const std::vector<int32_t>& values) : DeviceMemory(4 * values.size()) {
    std::memcpy(data(), values.data(), bytes_);
  }
  // Holds the values rounded to the type.
  DeviceMemory(const Floats& values, Type type) : DeviceMemory(Bytes(type) * values.size()) {
    EXPECT_EQ(Convert(data(), type, values.data(), Type::kF32, values.size(), nullptr), 0);
  }
  DeviceMemory(DeviceMemory&& other) noexcept : bytes_(other.bytes_), memory_(other.memory_) {
    other.memory_ = nullptr;
  }
  ~DeviceMemory() {
    if (memory_ == nullptr) return;
    for (int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(memory_[i], 0xff) << "written " << kGuard - i << " bytes before a tensor";
      EXPECT_EQ(memory_[kGuard + bytes_ + i], 0xff) << "written " << i << " bytes behind a tensor";
    }
    std::free(memory_);
  }

  uint8_t* data() { return memory_ + kGuard; }
  float* floats() { return reinterpret_cast<float*>(data()); }
  int32_t* ints() { return reinterpret_cast<int32_t*>(data()); }
  OutOfRange* out_of_range() { return reinterpret_cast<OutOfRange*>(data()); }

  Floats Read(Type type) {
    Floats values(bytes_ / Bytes(type));
    EXPECT_EQ(Convert(values.data(), Type::kF32, data(), type, values.size(), nullptr), 0);
    return values;
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr int64_t kGuard = 0;
#else
  static constexpr int64_t kGuard = 1024;
#endif

  const int64_t bytes_;
  uint8_t* memory_;
};

// Returns the values as a tensor of the type stores them.
inline Floats Rounded(const Floats& values, Type type) {
  return DeviceMemory(values, type).Read(type);
}

// Expects what kernels::ExpectClose() expects, but allows for the rounding of results to their
// type.
inline void ExpectRounded(const Floats& actual, const std::vector<double>& expected, Type type,
                          int64_t terms = 1) {
  ASSERT_EQ(actual.size(), expected.size());
  const double of_type = type == Type::kBf16 ? 0x1p-8 : type == Type::kF16 ? 0x1p-11 : 0;
  double largest = 1e-30;
  for (double v : expected) largest = std::max(largest, std::abs(v));
  const double tolerance = (of_type + (8 + std::sqrt(double(terms))) * 0x1p-23) * largest;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance) << "element " << i << " of " << actual.size();
  }
}

inline constexpr Type kFloating[] = {Type::kF32, Type::kBf16, Type::kF16};

// Calls run(type) for every floating type, in both orders of threads.
template <typename F>
void ForEveryRun(F run) {
  for (ThreadOrder order : {ThreadOrder::kAscending, ThreadOrder::kDescending}) {
    for (Type type : kFloating) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type)
                                      << (order == ThreadOrder::kAscending ? ", ascending" : ""));
      SetThreadOrder(order);
      run(type);
    }
  }
  SetThreadOrder(ThreadOrder::kAscending);
}

}  // namespace muster::kernels::cuda::emulation
