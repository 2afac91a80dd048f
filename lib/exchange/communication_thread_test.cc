#include "lib/exchange/communication_thread.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/transport/testing/inprocess_transport.h"

namespace muster::communication_thread_test {
namespace {

using ::testing::ElementsAre;

// Records its calls. While the thread runs, only the thread uses the fields.
class Recorder : public CommunicationThread::Work {
 public:
  absl::Status Open(Transport& transport) override {
    thread = std::this_thread::get_id();
    address = transport.address();
    return open_error;
  }
  void Turn(absl::Span<const ChunkId> came) override {
    EXPECT_EQ(std::this_thread::get_id(), thread);
    posted.insert(posted.end(), came.begin(), came.end());
    if (posted.size() == awaited && !all.HasBeenNotified()) all.Notify();
    ++turns;
  }
  void Closing() override { closed = true; }

  void PeerJoined(PeerId, const LinkIdentity&) override {}
  PayloadPlace PlacePayload(PeerId, const WireHeader&) override { return {}; }
  void Received(PeerId, const WireHeader&, absl::Span<const std::byte>, PayloadLease) override {}
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId, const absl::Status&) override {}

  size_t awaited = 0;  // number of posts after which `all` is notified
  absl::Status open_error;
  std::thread::id thread;
  std::string address;
  std::vector<ChunkId> posted;
  int turns = 0;
  bool closed = false;
  absl::Notification all;
};

// Logs when it is destroyed and when its registrations are.
class LoggedTransport : public Transport {
 public:
  LoggedTransport(std::unique_ptr<Transport> transport, std::vector<std::string>* log)
      : transport_(std::move(transport)), log_(log) {}
  ~LoggedTransport() override { log_->emplace_back("transport gone"); }

  void SetReceiver(MessageReceiver* receiver) override { transport_->SetReceiver(receiver); }
  std::string address() const override { return transport_->address(); }
  std::string name() const override { return transport_->name(); }
  void OpenSession(uint64_t, uint32_t, const SessionToken&) override {}
  void CloseSession(uint64_t, uint32_t) override {}
  absl::StatusOr<PeerId> Connect(absl::string_view, const LinkCredentials&) override {
    return PeerId::kNone;
  }
  void Disconnect(PeerId) override {}
  void Send(PeerId, const WireHeader&, absl::Span<const std::byte>, SendDone) override {}
  absl::StatusOr<std::unique_ptr<MemoryRegistration>> RegisterMemory(
      absl::Span<std::byte>) override {
    struct Logged : MemoryRegistration {
      explicit Logged(std::vector<std::string>* log) : log(log) { log->emplace_back("registered"); }
      ~Logged() override { log->emplace_back("unregistered"); }
      std::vector<std::string>* const log;
    };
    return std::make_unique<Logged>(log_);
  }
  int Progress() override { return transport_->Progress(); }
  void Wait(absl::Duration) override { transport_->Wait(absl::InfiniteDuration()); }
  void Wake() override { transport_->Wake(); }

 private:
  const std::unique_ptr<Transport> transport_;
  std::vector<std::string>* const log_;
};

struct Network {
  InProcessNetwork network;
  std::vector<std::string> log;
  TransportFactory factory = [this] {
    return std::make_unique<LoggedTransport>(network.MakeTransport(), &log);
  };
};

TEST(CommunicationThreadTest, OpensItsTransportOnTheThreadBeforeStartReturns) {
  Network network;
  Recorder work;
  CommunicationThread thread(network.factory, /*posts_max=*/1, &work);
  ASSERT_TRUE(thread.Start({}).ok());
  EXPECT_EQ(work.address, "inprocess:0");
  EXPECT_NE(work.thread, std::this_thread::get_id());
  thread.Close();
  EXPECT_TRUE(work.closed);
}

// The transport sleeps without a limit until it is woken, so a lost wake-up would block the test.
TEST(CommunicationThreadTest, PostsOfManyThreadsArriveOnceAndInOrder) {
  constexpr int kThreads = 4, kPosts = 500;
  Network network;
  Recorder work;
  work.awaited = kThreads * kPosts;
  CommunicationThread thread(network.factory, /*posts_max=*/8, &work);
  ASSERT_TRUE(thread.Start({}).ok());
  {
    std::vector<std::jthread> posters;
    for (int t = 0; t < kThreads; ++t) {
      posters.emplace_back([&thread, t] {
        for (int i = 0; i < kPosts; ++i) thread.Post(ChunkId(t * kPosts + i));
      });
    }
  }
  work.all.WaitForNotification();
  thread.Close();
  ASSERT_EQ(work.posted.size(), kThreads * kPosts);
  std::vector<int> next(kThreads, 0);
  for (const ChunkId chunk : work.posted) {
    const int post = ToInt(chunk);
    EXPECT_EQ(post % kPosts, next[post / kPosts]++);
  }
}

TEST(CommunicationThreadTest, PostsBeforeTheStartAreInTheFirstTurn) {
  Network network;
  Recorder work;
  work.awaited = 2;
  CommunicationThread thread(network.factory, /*posts_max=*/1, &work);
  thread.Post(ChunkId(7));
  thread.Post(ChunkId(8));
  ASSERT_TRUE(thread.Start({}).ok());
  work.all.WaitForNotification();
  thread.Close();
  EXPECT_THAT(work.posted, ElementsAre(ChunkId(7), ChunkId(8)));
}

TEST(CommunicationThreadTest, WakeCausesATurn) {
  Network network;
  struct : Recorder {
    void Turn(absl::Span<const ChunkId> came) override {
      Recorder::Turn(came);
      if (asked.HasBeenNotified() && !seen.HasBeenNotified()) seen.Notify();
    }
    absl::Notification asked, seen;
  } work;
  CommunicationThread thread(network.factory, /*posts_max=*/1, &work);
  ASSERT_TRUE(thread.Start({}).ok());
  work.asked.Notify();
  thread.Wake();
  work.seen.WaitForNotification();
}

TEST(CommunicationThreadTest, TransportIsDestroyedBeforeTheRegistrations) {
  Network network;
  Recorder work;
  std::vector<std::byte> memory(64);
  {
    CommunicationThread thread(network.factory, /*posts_max=*/1, &work);
    ASSERT_TRUE(thread.Start({absl::MakeSpan(memory), {}}).ok());
    EXPECT_FALSE(thread.closing());
  }
  EXPECT_THAT(network.log, ElementsAre("registered", "transport gone", "unregistered"));
}

TEST(CommunicationThreadTest, FailureToOpenIsReturnedAndNothingFollows) {
  Network network;
  Recorder work;
  work.open_error = absl::UnavailableError("nobody there");
  CommunicationThread unopened(network.factory, /*posts_max=*/1, &work);
  EXPECT_EQ(unopened.Start({}), work.open_error);
  unopened.Post(ChunkId(1));
  unopened.Close();
  EXPECT_EQ(work.turns, 0);
  EXPECT_FALSE(work.closed);

  const absl::Status no_device = absl::NotFoundError("no device");
  CommunicationThread without_transport([&] { return no_device; }, /*posts_max=*/1, &work);
  EXPECT_EQ(without_transport.Start({}), no_device);
}

}  // namespace
}  // namespace muster::communication_thread_test
