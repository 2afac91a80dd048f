#include "lib/transport/core/doorbell.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster::doorbell_test {
namespace {

// Returns whether `events` has an edge, and consumes it.
bool HasEdge(const FileDescriptor& events) {
  epoll_event event;
  return epoll_wait(events.get(), &event, 1, 0) == 1;
}

FileDescriptor Watch(const Doorbell& bell) {
  FileDescriptor events(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {}};
  EXPECT_EQ(epoll_ctl(events.get(), EPOLL_CTL_ADD, bell.fd(), &event), 0);
  return events;
}

TEST(DoorbellTest, EveryRingIsAnEdgeWithoutAnyRead) {
  const Doorbell bell = *Doorbell::Create();
  const FileDescriptor events = Watch(bell);
  EXPECT_FALSE(HasEdge(events));
  const auto handed_over = Doorbell::Adopt(FileDescriptor(dup(bell.fd())));
  ASSERT_TRUE(handed_over.ok()) << handed_over.status();
  for (int i = 0; i < 3; ++i) {
    handed_over->Ring();
    EXPECT_TRUE(HasEdge(events));
    EXPECT_FALSE(HasEdge(events));
  }
}

TEST(DoorbellTest, RingingAFullCounterNeitherBlocksNorIsLost) {
  const Doorbell bell = *Doorbell::Create();
  const FileDescriptor events = Watch(bell);
  const uint64_t all = std::numeric_limits<uint64_t>::max() - 1;
  ASSERT_EQ(write(bell.fd(), &all, sizeof(all)), sizeof(all));
  ASSERT_TRUE(HasEdge(events));
  bell.Ring();
  EXPECT_TRUE(HasEdge(events));
}

TEST(DoorbellTest, AdoptAcceptsOnlyAnEventFdThatCannotBlock) {
  EXPECT_TRUE(absl::IsInvalidArgument(Doorbell::Adopt(FileDescriptor()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      Doorbell::Adopt(FileDescriptor(open("/dev/null", O_WRONLY | O_NONBLOCK))).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Doorbell::Adopt(FileDescriptor(eventfd(0, 0))).status()));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  const FileDescriptor read_end(ends[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(Doorbell::Adopt(FileDescriptor(ends[1])).status()));
}

}  // namespace
}  // namespace muster::doorbell_test
