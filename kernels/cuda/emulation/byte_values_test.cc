#include "kernels/cuda/byte_values.h"

#include <vector>

#include "kernels/cuda/emulation/device_memory.h"

namespace muster::kernels::cuda::emulation::byte_values_test {
namespace {

TEST(ByteValuesTest, EveryByteBecomesItsValueInTheTable) {
  Floats values(256);
  for (int byte = 0; byte < 256; ++byte) values[byte] = 3.0f * byte - 100;
  for (ThreadOrder order : {ThreadOrder::kAscending, ThreadOrder::kDescending}) {
    SetThreadOrder(order);
    for (int64_t n : {0, 1, 3, 4, 1023, 20'005}) {
      DeviceMemory table(values, Type::kF32), x(n), y(n * Bytes(Type::kF32));
      for (int64_t i = 0; i < n; ++i) x.data()[i] = static_cast<uint8_t>(i * 7);
      ASSERT_EQ(DecodeBytes(y.floats(), x.data(), n, table.floats(), /*channels=*/1, /*plane=*/1,
                            nullptr),
                cudaSuccess);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(y.floats()[i], 3.0f * x.data()[i] - 100) << i << " of " << n;
      }
    }
  }
  SetThreadOrder(ThreadOrder::kAscending);
}

TEST(ByteValuesTest, EveryChannelHasItsTable) {
  constexpr int kChannels = 3;
  Floats values(256 * kChannels);
  for (int i = 0; i < 256 * kChannels; ++i) values[i] = 3.0f * (i % 256) + 1000 * (i / 256);
  for (ThreadOrder order : {ThreadOrder::kAscending, ThreadOrder::kDescending}) {
    SetThreadOrder(order);
    for (int64_t plane : {1, 6, 7, 8, 5000, 8192}) {
      const int64_t n = 2 * kChannels * plane;
      DeviceMemory tables(values, Type::kF32), x(n), y(n * Bytes(Type::kF32));
      for (int64_t i = 0; i < n; ++i) x.data()[i] = static_cast<uint8_t>(i * 7);
      ASSERT_EQ(DecodeBytes(y.floats(), x.data(), n, tables.floats(), kChannels, plane, nullptr),
                cudaSuccess);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(y.floats()[i], 3.0f * x.data()[i] + 1000 * (i / plane % kChannels))
            << i << " of " << n;
      }
    }
  }
  SetThreadOrder(ThreadOrder::kAscending);
}

}  // namespace
}  // namespace muster::kernels::cuda::emulation::byte_values_test
