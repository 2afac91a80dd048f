#include "lib/transport/core/event_loop.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster::event_loop_test {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends;
    EXPECT_EQ(pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC), 0);
    out = FileDescriptor(ends[0]);
    in = FileDescriptor(ends[1]);
  }
  void Write() const { EXPECT_EQ(write(in.get(), "x", 1), 1); }
  FileDescriptor out, in;
};

class Notes : public EventLoop::Handler {
 public:
  void Ready(uint32_t events) override {
    ++calls;
    last = events;
  }
  int calls = 0;
  uint32_t last = 0;
};

class Idle : public EventLoop::Sleeper {
 public:
  bool HasNews() const override { return news; }
  bool PrepareToSleep() override {
    ++prepared;
    return !news && may_sleep;
  }
  absl::Duration SleepMax() const override { return sleep_max; }
  bool news = false;
  bool may_sleep = true;
  int prepared = 0;
  absl::Duration sleep_max = absl::InfiniteDuration();
};

// The parameter: whether the loop polls.
class EventLoopTest : public testing::TestWithParam<bool> {
 protected:
  EventLoopTest() {
    auto made = EventLoop::Create({.regardless = GetParam()});
    EXPECT_TRUE(made.ok()) << made.status();
    loop_ = *std::move(made);
  }
  std::unique_ptr<EventLoop> loop_;
};

TEST_P(EventLoopTest, HandlersReceiveTheEventsOfTheirDescriptors) {
  Pipe first, second;
  Notes one, two;
  ASSERT_TRUE(loop_->Watch(first.out.get(), EPOLLIN, &one).ok());
  ASSERT_TRUE(loop_->Watch(second.out.get(), EPOLLIN, &two).ok());
  EXPECT_EQ(loop_->Look(), 0);
  second.Write();
  EXPECT_EQ(loop_->Look(), 1);
  EXPECT_EQ(one.calls, 0);
  EXPECT_EQ(two.calls, 1);
  EXPECT_EQ(two.last, EPOLLIN);
  loop_->Unwatch(second.out.get(), &two);
  EXPECT_EQ(loop_->Look(), 0);
}

TEST_P(EventLoopTest, OneLookHandlesAllReadyDescriptors) {
  for (const int count : {63, 64, 65, 128, 150}) {  // one call of the kernel returns at most 64
    std::vector<Pipe> pipes(count);
    std::vector<Notes> notes(count);
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(loop_->Watch(pipes[i].out.get(), EPOLLIN | EPOLLET, &notes[i]).ok());
      pipes[i].Write();
    }
    EXPECT_EQ(loop_->Look(), count);
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(notes[i].calls, 1);
      loop_->Unwatch(pipes[i].out.get(), &notes[i]);
    }
  }
}

TEST_P(EventLoopTest, ADescriptorEndsAWait) {
  Pipe pipe;
  Notes notes;
  Idle idle;
  ASSERT_TRUE(loop_->Watch(pipe.out.get(), EPOLLIN | EPOLLET, &notes).ok());
  std::jthread writer([&pipe] { pipe.Write(); });
  loop_->Wait(idle, absl::InfiniteDuration());
  EXPECT_EQ(notes.calls, 1);
}

TEST_P(EventLoopTest, WakeEndsTheCurrentOrTheNextWaitAndNoOther) {
  Idle idle;
  loop_->Wake();
  loop_->Wait(idle, absl::InfiniteDuration());
  std::jthread waker([this] { loop_->Wake(); });
  loop_->Wait(idle, absl::InfiniteDuration());
  waker.join();
  const auto begin = std::chrono::steady_clock::now();
  loop_->Wait(idle, absl::Milliseconds(20));  // the bell of the last Wake() may end it at once
  loop_->Wait(idle, absl::Milliseconds(20));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

TEST_P(EventLoopTest, WakesOfManyThreadsAreNeverMissed) {
  Idle idle;
  std::atomic<int> posted = 0;
  std::jthread poster([&] {
    for (int i = 0; i < 20'000; ++i) {
      posted.fetch_add(1);
      loop_->Wake();
    }
  });
  while (posted.load() < 20'000) loop_->Wait(idle, absl::InfiniteDuration());
}

// Calls `before_sleep` when a waiting thread has checked for wakes and is about to sleep. The
// thread then does not sleep.
class Restless : public EventLoop::Sleeper {
 public:
  explicit Restless(std::function<void()> before_sleep) : before_sleep_(std::move(before_sleep)) {}
  bool HasNews() const override { return false; }
  bool PrepareToSleep() override {
    before_sleep_();
    return false;
  }

 private:
  const std::function<void()> before_sleep_;
};

// Only ThreadSanitizer can fail this test (--config=tsan): the processors that run the tests do not
// reorder these accesses.
TEST_P(EventLoopTest, WritesBeforeAWakeAreVisibleAfterTheWaitThatItEnds) {
  int first = 0, second = 0;
  std::atomic<int> woken = 0;  // counts the wakes; relaxed, so that it orders nothing
  const auto await = [&woken](int wakes) {
    while (woken.load(std::memory_order_relaxed) < wakes) std::this_thread::yield();
  };
  const auto wake = [&](int before, int& written) {
    await(before);
    written = 1;
    loop_->Wake();
    woken.store(before + 1, std::memory_order_relaxed);
  };
  std::atomic<bool> prepares = false;
  const auto started = [&prepares] {
    while (!prepares.load(std::memory_order_relaxed)) std::this_thread::yield();
  };
  std::jthread one([&] {
    started();
    wake(0, first);
  });
  std::jthread two([&] { wake(1, second); });
  Restless restless([&] {
    prepares.store(true, std::memory_order_relaxed);
    await(2);
  });
  loop_->Wait(restless, absl::InfiniteDuration());
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
}

TEST_P(EventLoopTest, NewsEndAWaitWithoutADescriptor) {
  Idle idle;
  idle.news = true;
  loop_->Wait(idle, absl::InfiniteDuration());
  idle.news = false;
  idle.may_sleep = false;  // the news arrive while the thread prepares to sleep
  loop_->Wait(idle, absl::InfiniteDuration());
  EXPECT_GE(idle.prepared, 1);
}

TEST_P(EventLoopTest, NoSleepLastsLongerThanSleepMax) {
  Idle idle;
  idle.sleep_max = absl::Milliseconds(2);
  loop_->Wait(idle, absl::InfiniteDuration());
}

TEST_P(EventLoopTest, ABusyThreadLooksAtIdleDescriptorsNowAndThen) {
  Pipe pipe;
  Notes notes;
  ASSERT_TRUE(loop_->Watch(pipe.out.get(), EPOLLIN | EPOLLET, &notes).ok());
  for (int i = 0; i < 100; ++i) loop_->LookIfDue(1);
  pipe.Write();
  int turns = 0;
  while (notes.calls == 0 && turns < 100) {
    loop_->LookIfDue(1);
    ++turns;
  }
  EXPECT_EQ(notes.calls, 1);
  EXPECT_LE(turns, 16);
}

INSTANTIATE_TEST_SUITE_P(, EventLoopTest, testing::Bool(),
                         [](const auto& polls) { return polls.param ? "Polling" : "Sleeping"; });

}  // namespace
}  // namespace muster::event_loop_test
