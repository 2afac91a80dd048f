#include "lib/concurrency/steady_wait.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace {
std::atomic<int64_t> wall_clock_is_ahead_by = 0;  // seconds
}  // namespace

// Replaces the wall clock of this process, so that a test can step it. Timed waits of absl::Mutex
// compute their deadline from it, but sleep by the machine's own clock.
extern "C" int gettimeofday(timeval* time, void* /*zone*/) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec + wall_clock_is_ahead_by;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

namespace muster::steady_wait_test {
namespace {

class SteadyWaitTest : public ::testing::Test {
 protected:
  ~SteadyWaitTest() override { wall_clock_is_ahead_by = 0; }

  bool AwaitNever(absl::Duration timeout) {
    absl::MutexLock lock(&mu_);
    bool never = false;
    return AwaitFor(&mu_, absl::Condition(&never), timeout);
  }

  absl::Mutex mu_;
  bool flag_ = false;  // guarded by mu_
};

TEST_F(SteadyWaitTest, EndsWhenTheConditionHolds) {
  std::thread setter([&] {
    absl::MutexLock lock(&mu_);
    flag_ = true;
  });
  {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(AwaitFor(&mu_, absl::Condition(&flag_), absl::Hours(1)));
    EXPECT_TRUE(AwaitFor(&mu_, absl::Condition(&flag_), absl::ZeroDuration()));
  }
  setter.join();
}

TEST_F(SteadyWaitTest, EndsAtTheDeadlineAndNotBefore) {
  const absl::Duration begin = SteadyNow();
  EXPECT_FALSE(AwaitNever(absl::Milliseconds(20)));
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(20));
  EXPECT_FALSE(AwaitNever(absl::ZeroDuration()));
  EXPECT_FALSE(AwaitNever(-absl::InfiniteDuration()));
}

// The thread that keeps all deadlines may sleep until the deadline of a waiter that is gone by
// then, with its stack. The next waiter wakes it; a sanitizer checks that it does not touch the
// stack.
TEST_F(SteadyWaitTest, AWaiterMayBeGoneBeforeItsDeadline) {
  constexpr size_t kStackBytes = 1 << 20;
  void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  ASSERT_NE(stack, MAP_FAILED);
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstack(&attributes, stack, kStackBytes), 0);
  struct Wait {
    absl::Mutex mu;
    bool begun = false;
    bool over = false;
  } wait;
  const auto await = [](void* it) -> void* {
    Wait& wait = *static_cast<Wait*>(it);
    absl::MutexLock lock(&wait.mu);
    wait.begun = true;
    AwaitFor(&wait.mu, absl::Condition(&wait.over), absl::Hours(1));
    return nullptr;
  };
  pthread_t waiter;
  ASSERT_EQ(pthread_create(&waiter, &attributes, await, &wait), 0);
  {
    absl::MutexLock lock(&wait.mu);
    wait.mu.Await(absl::Condition(&wait.begun));
    wait.over = true;
  }
  ASSERT_EQ(pthread_join(waiter, nullptr), 0);
  pthread_attr_destroy(&attributes);
  ASSERT_EQ(munmap(stack, kStackBytes), 0);
  EXPECT_FALSE(AwaitNever(absl::Milliseconds(1)));
}

// The process's wall clock is an hour ahead of the clock by which the machine sleeps. To a waiter
// this looks like a step back of the wall clock.
TEST_F(SteadyWaitTest, AStepOfTheWallClockDoesNotLengthenIt) {
  wall_clock_is_ahead_by = 3600;
  const absl::Duration begin = SteadyNow();
  EXPECT_FALSE(AwaitNever(absl::Milliseconds(5)));
  EXPECT_LT(SteadyNow() - begin, absl::Minutes(1));
}

TEST_F(SteadyWaitTest, AStepOfTheWallClockDoesNotCutItShort) {
  wall_clock_is_ahead_by = -3600;
  const absl::Duration begin = SteadyNow();
  EXPECT_FALSE(AwaitNever(absl::Milliseconds(20)));
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(20));
}

// Deadlines pass while the condition becomes true, and waiters come and go in any order. The setter
// sleeps so that some of its rounds come before the deadline and some after.
TEST_F(SteadyWaitTest, ManyWaitersThatRaceWithTheirDeadlines) {
  constexpr int kThreads = 8, kRounds = 200;
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::atomic<int> met = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      for (int round = 0; round < kRounds; ++round) {
        absl::Mutex mu;
        bool flag = false;
        std::thread setter([&] {
          absl::SleepFor(absl::Microseconds(random() % 300));
          absl::MutexLock lock(&mu);
          flag = true;
        });
        {
          absl::MutexLock lock(&mu);
          const bool in_time =
              AwaitFor(&mu, absl::Condition(&flag), absl::Microseconds(100 + round));
          EXPECT_EQ(in_time, flag);
          met += in_time;
        }
        setter.join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(met, 0);
}

}  // namespace
}  // namespace muster::steady_wait_test
