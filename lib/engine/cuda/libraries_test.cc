// Tests functions that loading cuBLASLt and cuDNN must not break.
#include "kernels/cuda/libraries.h"

#include <pthread.h>

#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"

namespace muster::libraries_test {
namespace {

class LibrariesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const kernels::cuda::Failure failure = kernels::cuda::LoadLibraries()) {
      GTEST_SKIP() << failure;
    }
  }
};

// cuBLASLt has 92 KiB of thread-local storage. If it were loaded at process start, every thread's
// stack would lose that much, and the metrics server creates threads with small stacks.
TEST_F(LibrariesTest, ThreadsWithSmallStacksStart) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 100 << 10), 0);
  pthread_t thread;
  const auto nothing = [](void* argument) { return argument; };
  ASSERT_EQ(pthread_create(&thread, &attributes, nothing, nullptr), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

TEST_F(LibrariesTest, MetricsAreServed) {
  Metrics metrics;
  const absl::Status served = metrics.Serve("127.0.0.1:0");
  EXPECT_TRUE(served.ok()) << served;
}

}  // namespace
}  // namespace muster::libraries_test
