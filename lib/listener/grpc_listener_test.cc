#include "lib/listener/grpc_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster::grpc_listener_test {
namespace {

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr int kPatienceMs = 20'000;

std::string Frame(int type, int flags, int stream, const std::string& payload) {
  std::string frame = {0, 0, static_cast<char>(payload.size()), static_cast<char>(type),
                       static_cast<char>(flags)};
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>(stream >> shift));
  return frame + payload;
}
std::string Begin(int stream) { return Frame(1, 4, stream, "headers"); }
std::string Trailers(int stream) { return Frame(1, 5, stream, "status"); }

void Send(const FileDescriptor& socket, const std::string& bytes) {
  ASSERT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}
// Receives `bytes` bytes, or fewer if the other end hangs up before.
std::string Receive(const FileDescriptor& socket, size_t bytes) {
  std::string received(bytes, 0);
  size_t have = 0;
  pollfd readable = {.fd = socket.get(), .events = POLLIN};
  while (have < bytes && poll(&readable, 1, kPatienceMs) == 1) {
    const ssize_t more = recv(socket.get(), &received[have], bytes - have, 0);
    if (more <= 0) break;
    have += static_cast<size_t>(more);
  }
  return received.substr(0, have);
}
bool HangsUp(const FileDescriptor& socket) {
  pollfd readable = {.fd = socket.get(), .events = POLLIN};
  char byte;
  return poll(&readable, 1, kPatienceMs) == 1 && recv(socket.get(), &byte, 1, 0) <= 0;
}

class GrpcListenerTest : public ::testing::Test {
 protected:
  void Open(GrpcListener::Options options = {}) {
    auto listener = GrpcListener::Listen("127.0.0.1:0", options);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    listener_->Open([this](int socket) {
      absl::MutexLock lock(&mu_);
      served_.emplace_back(socket);
    });
  }
  // Connects from 127.0.0.`host`.
  FileDescriptor Connect(int host = 1) {
    FileDescriptor client(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in from{.sin_family = AF_INET};
    from.sin_addr.s_addr = htonl(0x7f000000 + static_cast<uint32_t>(host));
    EXPECT_EQ(bind(client.get(), reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
    sockaddr_in to{.sin_family = AF_INET,
                   .sin_port = htons(static_cast<uint16_t>(listener_->port()))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    return client;
  }
  // Returns the server's end of the next connection.
  FileDescriptor Served() {
    absl::MutexLock lock(&mu_);
    auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !served_.empty(); };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&any), absl::Milliseconds(kPatienceMs)));
    if (served_.empty()) return {};
    FileDescriptor first = std::move(served_.front());
    served_.erase(served_.begin());
    return first;
  }

  absl::Mutex mu_;
  std::vector<FileDescriptor> served_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<GrpcListener> listener_;
};

TEST_F(GrpcListenerTest, ForwardsTheBytesOfBothSides) {
  Open();
  const FileDescriptor client = Connect(), server = Served();
  std::string message;
  for (int i = 0; i < 1000; ++i) message += Frame(0, 0, 1, std::string(100, static_cast<char>(i)));

  Send(client, kPreface + Begin(1) + message);
  EXPECT_EQ(Receive(server, kPreface.size() + Begin(1).size() + message.size()),
            kPreface + Begin(1) + message);
  Send(server, message.substr(0, 50'000));
  EXPECT_EQ(Receive(client, 49'991), message.substr(0, 49'991))
      << "all bytes except the incomplete header";
}

TEST_F(GrpcListenerTest, ACallWithoutCreditWaitsUntilAnotherEnds) {
  Open({.credit = {.first = 1, .most = 1, .per_second = 0}});
  const FileDescriptor client = Connect(), server = Served();
  Send(client, kPreface + Begin(1) + Begin(3));
  EXPECT_EQ(Receive(server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  Send(server, Trailers(1));

  EXPECT_EQ(Receive(server, Begin(3).size()), Begin(3));
  EXPECT_EQ(Receive(client, Trailers(1).size()), Trailers(1));
}

TEST_F(GrpcListenerTest, AClosedEndClosesTheOtherEnd) {
  Open();
  FileDescriptor client = Connect(), server = Served();
  client = FileDescriptor();
  EXPECT_TRUE(HangsUp(server));

  FileDescriptor other = Connect(), its_server = Served();
  Send(its_server, Trailers(1));
  its_server = FileDescriptor();
  EXPECT_EQ(Receive(other, Trailers(1).size()), Trailers(1)) << "the last bytes of the server";
  EXPECT_TRUE(HangsUp(other));
}

TEST_F(GrpcListenerTest, APeerThatDoesNotSpeakHttp2IsHungUpOn) {
  Open({.greeting_max = absl::ZeroDuration()});
  const FileDescriptor silent = Connect();
  EXPECT_TRUE(HangsUp(silent));
  const FileDescriptor garbage = Connect();
  send(garbage.get(), "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL);
  EXPECT_TRUE(HangsUp(garbage));
}

TEST_F(GrpcListenerTest, AClientThatDoesNotReadIsNotReadEither) {
  Open();
  const FileDescriptor client = Connect(), server = Served();
  Send(client, kPreface);
  EXPECT_EQ(Receive(server, kPreface.size()), kPreface);
  const std::string answer = Frame(0, 0, 1, std::string(100, 'a'));
  size_t sent = 0;
  // Sends until neither the client's buffers nor the listener's own have had room for a while.
  for (pollfd writable = {.fd = server.get(), .events = POLLOUT}; poll(&writable, 1, 1000) == 1;) {
    const ssize_t some = send(server.get(), answer.data() + sent % answer.size(),
                              answer.size() - sent % answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (some > 0) sent += static_cast<size_t>(some);
  }

  Send(client, Begin(1));
  pollfd readable = {.fd = server.get(), .events = POLLIN};
  EXPECT_EQ(poll(&readable, 1, 200), 0);

  EXPECT_EQ(Receive(client, sent).size(), sent);
  EXPECT_EQ(Receive(server, Begin(1).size()), Begin(1));
}

TEST_F(GrpcListenerTest, AFullListenerClosesAConnectionWithoutCallsOrRefuses) {
  Open({.connections_max = 2, .address_share = 1});
  const FileDescriptor idle = Connect(), idle_server = Served();
  const FileDescriptor busy = Connect(), busy_server = Served();
  Send(busy, kPreface + Begin(1));
  EXPECT_EQ(Receive(busy_server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  const FileDescriptor newcomer = Connect(), newcomer_server = Served();
  EXPECT_TRUE(HangsUp(idle));
  Send(newcomer, kPreface + Begin(1));
  EXPECT_EQ(Receive(newcomer_server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));
  const FileDescriptor refused = Connect();
  EXPECT_TRUE(HangsUp(refused));
}

TEST_F(GrpcListenerTest, OneAddressCannotTakeAllPlaces) {
  Open({.connections_max = 4, .address_share = 0.5});
  auto begin = [](const FileDescriptor& client, const FileDescriptor& server) {
    Send(client, kPreface + Begin(1));
    EXPECT_EQ(Receive(server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));
  };
  const FileDescriptor idle = Connect(2), idle_server = Served();
  const FileDescriptor busy = Connect(2), busy_server = Served();
  begin(busy, busy_server);
  const FileDescriptor third = Connect(2), third_server = Served();
  EXPECT_TRUE(HangsUp(idle))
      << "closed for the next connection of its address, although there is room";
  begin(third, third_server);
  for (int i = 0; i < 8; ++i)
    EXPECT_TRUE(HangsUp(Connect(2))) << "all connections of the address have calls";

  const FileDescriptor other = Connect(3), other_server = Served();
  begin(other, other_server);
  const FileDescriptor fourth = Connect(3), fourth_server = Served();
  begin(fourth, fourth_server);
  Send(busy, Frame(0, 0, 1, "message"));
  EXPECT_EQ(Receive(busy_server, 16), Frame(0, 0, 1, "message"))
      << "no other connection was closed";
}

// A client that connects and hangs up as fast as it can would otherwise take all of the listener's
// time.
TEST_F(GrpcListenerTest, AFloodFromOneAddressDelaysNoOther) {
  Open({.connections_per_second = 5});
  for (int i = 0; i < 500; ++i) Connect(2);

  const FileDescriptor client = Connect(3);
  Send(client, kPreface);

  const absl::Time patience = absl::Now() + absl::Seconds(10);
  bool heard = false;
  while (!heard) {
    ASSERT_LT(absl::Now(), patience) << "the connection waits behind the flood";
    const FileDescriptor server = Served();
    // False if it was a connection of the flood that has hung up.
    heard = Receive(server, kPreface.size()) == kPreface;
  }
}

TEST_F(GrpcListenerTest, AnAddressMayConnectAgainAfterItHasLeft) {
  Open({.connections_max = 2, .address_share = 0.5});
  for (int i = 0; i < 4; ++i) {
    FileDescriptor client = Connect(2), server = Served();
    Send(client, kPreface + Begin(1));
    EXPECT_EQ(Receive(server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));
    client = FileDescriptor();
    EXPECT_TRUE(HangsUp(server));
  }
}

TEST_F(GrpcListenerTest, AConnectionMayHaveAFewCallsBeyondTheLimitOfAll) {
  Open({.calls_max = 1});
  const FileDescriptor first = Connect(), first_server = Served();
  Send(first, kPreface + Begin(1));
  EXPECT_EQ(Receive(first_server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  const FileDescriptor second = Connect(), second_server = Served();
  std::string calls = kPreface;
  for (int i = 0; i < GrpcListener::kCallsAlways; ++i) calls += Begin(1 + 2 * i);
  Send(second, calls + Begin(99));
  EXPECT_EQ(Receive(second_server, calls.size()), calls);
  Send(second_server, Trailers(1));
  EXPECT_EQ(Receive(second_server, Begin(99).size()), Begin(99));
}

TEST_F(GrpcListenerTest, TheIdlestConnectionOfTheLargestAddressMakesRoomIfAllHaveCalls) {
  Open({.connections_max = 4, .address_share = 1});
  struct Ends {
    FileDescriptor client, server;
  };
  const auto come = [&](int host) {
    Ends ends{.client = Connect(host), .server = Served()};
    Send(ends.client, kPreface + Begin(1));
    EXPECT_EQ(Receive(ends.server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));
    return ends;
  };
  const Ends first = come(1), second = come(1), third = come(1), alone = come(2);
  Send(first.client, Frame(0, 0, 1, "m"));  // now the second is the idlest
  EXPECT_EQ(Receive(first.server, Frame(0, 0, 1, "m").size()), Frame(0, 0, 1, "m"));
  EXPECT_TRUE(HangsUp(Connect(1))) << "an address does not displace its own connections";

  const Ends other = come(3);

  EXPECT_TRUE(HangsUp(second.client));
  for (const Ends* ends : {&first, &third, &alone, &other}) {
    Send(ends->client, Frame(0, 0, 1, "m"));
    EXPECT_EQ(Receive(ends->server, Frame(0, 0, 1, "m").size()), Frame(0, 0, 1, "m"));
  }
}

TEST_F(GrpcListenerTest, WhenMemoryIsShortAConnectionBeginsAFewCallsAndWaits) {
  std::atomic<int64_t> resident = 2;
  Open({.resident_bytes_max = 1, .resident_bytes = [&] { return resident.load(); }});
  const FileDescriptor client = Connect(), server = Served();
  std::string few = kPreface;
  for (int i = 0; i < GrpcListener::kCallsAlways; ++i)
    few += Begin(1 + 2 * i) + Frame(3, 0, 1 + 2 * i, "code");
  Send(client, few + Begin(99));
  EXPECT_EQ(Receive(server, few.size()), few);
  resident = 0;
  EXPECT_EQ(Receive(server, Begin(99).size()), Begin(99));
}

TEST_F(GrpcListenerTest, InACrowdBusyConnectionsWaitAndNoCreditComesBackAtOnce) {
  std::atomic<bool> crowded = true;
  Open({.credit = {.first = 6, .most = 6, .per_second = 0},
        .crowded = [&] { return crowded.load(); }});
  const FileDescriptor busy = Connect(), busy_server = Served();
  std::string few = kPreface;
  for (int i = 0; i < GrpcListener::kCallsAlways; ++i) few += Begin(1 + 2 * i);
  Send(busy, few + Begin(99) + Begin(101) + Begin(103));
  EXPECT_EQ(Receive(busy_server, few.size()), few);
  Send(busy_server, Trailers(1) + Trailers(3) + Trailers(5));
  EXPECT_EQ(Receive(busy, 3 * Trailers(1).size()), Trailers(1) + Trailers(3) + Trailers(5));
  const FileDescriptor other = Connect(), other_server = Served();
  Send(other, kPreface + Begin(1));
  EXPECT_EQ(Receive(other_server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  crowded = false;

  EXPECT_EQ(Receive(busy_server, 2 * Begin(99).size()), Begin(99) + Begin(101));
  Send(busy_server, Trailers(7));
  EXPECT_EQ(Receive(busy_server, Begin(103).size()), Begin(103))
      << "as many calls as had credit before";
}

TEST_F(GrpcListenerTest, WhenMemoryIsShortTheLargestConnectionIsClosed) {
  std::atomic<int64_t> resident = 0;
  Open({.resident_bytes_max = 1000,
        .resident_bytes = [&] { return resident.load(); },
        .spared_bytes = 100});
  const FileDescriptor large = Connect(), large_server = Served();
  const FileDescriptor small = Connect(), small_server = Served();
  const std::string message = Frame(0, 0, 1, std::string(100, 'm'));
  Send(large, kPreface + Begin(1) + message + message);
  Send(small, kPreface + Begin(1) + message);
  const size_t call = kPreface.size() + Begin(1).size() + message.size();
  EXPECT_EQ(Receive(large_server, call + message.size()).size(), call + message.size());
  EXPECT_EQ(Receive(small_server, call).size(), call);

  resident = 2000;

  EXPECT_TRUE(HangsUp(large));
  Send(small, message);
  EXPECT_EQ(Receive(small_server, message.size()), message);
}

TEST_F(GrpcListenerTest, AfterStopAcceptingOnlyOpenConnectionsAreServed) {
  Open();
  const FileDescriptor client = Connect(), server = Served();
  listener_->StopAccepting();
  const FileDescriptor late = Connect();  // the kernel's queue accepts it
  Send(client, kPreface);
  EXPECT_EQ(Receive(server, kPreface.size()), kPreface);
  listener_.reset();
  EXPECT_TRUE(HangsUp(late));
  EXPECT_TRUE(HangsUp(client));
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(served_.empty());
}

// A client with OpenSSL, over a blocking socket.
class TlsClient {
 public:
  TlsClient(FileDescriptor socket, const CertifiedKey* mine, const std::string& folder)
      : socket_(std::move(socket)), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context_.get(), kHttp2, sizeof(kHttp2));
    if (mine != nullptr) {
      const std::string path = folder + "/client.pem";
      std::ofstream(path) << mine->certificate << mine->key;
      EXPECT_EQ(SSL_CTX_use_certificate_file(context_.get(), path.c_str(), SSL_FILETYPE_PEM), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context_.get(), path.c_str(), SSL_FILETYPE_PEM), 1);
    }
    const timeval patience = {.tv_sec = kPatienceMs / 1000};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_.get());
    EXPECT_EQ(SSL_connect(ssl_.get()), 1);
  }
  SSL* ssl() const { return ssl_.get(); }
  const FileDescriptor& socket() const { return socket_; }
  bool Say(const std::string& bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) ==
           static_cast<int>(bytes.size());
  }
  std::string Hear(size_t bytes) {
    std::string heard(bytes, 0);
    size_t have = 0;
    while (have < bytes) {
      const int more = SSL_read(ssl_.get(), &heard[have], static_cast<int>(bytes - have));
      if (more <= 0) break;
      have += static_cast<size_t>(more);
    }
    return heard.substr(0, have);
  }

 private:
  FileDescriptor socket_;
  std::shared_ptr<SSL_CTX> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
};

class GrpcListenerTlsTest : public GrpcListenerTest {
 protected:
  GrpcListenerTlsTest() {
    signal(SIGPIPE, SIG_IGN);
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    const CertifiedKey mine = Issue(Role::kCoordinator);
    std::ofstream(folder_ + "/tls.crt") << mine.certificate;
    std::ofstream(folder_ + "/tls.key") << mine.key;
    std::ofstream(folder_ + "/ca.crt") << authority_.certificate;
    tls_ = *TlsServer::Open({folder_});
  }
  CertifiedKey Issue(Role role) const {
    CertificateOrder order{.identity = {role, ""}, .lifetime = absl::Hours(24)};
    if (role == Role::kCoordinator) order.hosts = {"localhost"};
    return *IssueCertificate(authority_, order, absl::Now());
  }
  TlsClient Handshake(const CertifiedKey* mine, int host = 1) {
    return {Connect(host), mine, folder_};
  }
  // Sends the start of a handshake and nothing more.
  FileDescriptor HalfHandshake(int host) {
    FileDescriptor client = Connect(host);
    send(client.get(), "\x16\x03\x01\x02\x00\x01", 6, MSG_NOSIGNAL);
    return client;
  }
  // Checks that the client's bytes arrive at the server's end, and the server's at the client.
  static void Converse(TlsClient& client, const FileDescriptor& server, int stream) {
    ASSERT_TRUE(client.Say(Begin(stream)));
    EXPECT_EQ(Receive(server, Begin(stream).size()), Begin(stream));
    Send(server, Trailers(stream));
    EXPECT_EQ(client.Hear(Trailers(stream).size()), Trailers(stream));
  }

  std::string folder_ = ::testing::TempDir() + "/listener-XXXXXX";
  const CertifiedKey authority_ = *MakeAuthority("test", absl::Now(), absl::Hours(240));
  const CertifiedKey worker_ = Issue(Role::kWorker);
  std::unique_ptr<TlsServer> tls_;
};

TEST_F(GrpcListenerTlsTest, AStalledHandshakeIsHungUpOnAndNeverReachesTheServer) {
  Open({.greeting_max = absl::Milliseconds(50), .tls = tls_.get()});
  EXPECT_TRUE(HangsUp(HalfHandshake(1)));
  absl::MutexLock lock(&mu_);
  EXPECT_TRUE(served_.empty());
}

TEST_F(GrpcListenerTlsTest, HalfHandshakesTakeNoPlaceFromClientsWithACertificate) {
  Open({.connections_max = 10, .unknown_max = 10, .tls = tls_.get()});  // a fifth of them: 2
  TlsClient member = Handshake(&worker_);
  const FileDescriptor server = Served();
  ASSERT_TRUE(member.Say(kPreface + Begin(1)));
  EXPECT_EQ(Receive(server, kPreface.size() + Begin(1).size()), kPreface + Begin(1));

  std::vector<FileDescriptor> halves;
  for (int i = 0; i < 40; ++i) halves.push_back(HalfHandshake(2 + i % 20));  // from many addresses
  TlsClient second = Handshake(&worker_);
  const FileDescriptor second_server = Served();
  ASSERT_TRUE(second.Say(kPreface));
  EXPECT_EQ(Receive(second_server, kPreface.size()), kPreface);
  Converse(second, second_server, 1);
  Converse(member, server, 3);
}

TEST_F(GrpcListenerTlsTest, TheOldestConnectionWithoutACertificateIsClosed) {
  Open({.connections_max = 10, .unknown_max = 10, .address_share = 1, .tls = tls_.get()});
  TlsClient member = Handshake(&worker_);
  const FileDescriptor server = Served();
  TlsClient first = Handshake(nullptr), second = Handshake(nullptr), third = Handshake(nullptr);
  pollfd readable = {.fd = first.socket().get(), .events = POLLIN};
  EXPECT_EQ(poll(&readable, 1, kPatienceMs), 1);
  EXPECT_EQ(first.Hear(1), "") << "at most two may be open";
  ASSERT_TRUE(member.Say(kPreface));
  EXPECT_EQ(Receive(server, kPreface.size()), kPreface);
  Converse(member, server, 1);
}

TEST_F(GrpcListenerTlsTest, UnauthenticatedPeersMakeRoomInTheirOwnPlaces) {
  Open({.connections_max = 5, .unknown_max = 1, .address_share = 1, .tls = tls_.get()});
  std::vector<TlsClient> members;
  std::vector<FileDescriptor> servers;
  const auto come = [&](const CertifiedKey* mine, int host) {
    members.push_back(Handshake(mine, host));
    servers.push_back(Served());
    ASSERT_TRUE(members.back().Say(kPreface + Begin(1)));
    EXPECT_EQ(Receive(servers.back(), kPreface.size() + Begin(1).size()), kPreface + Begin(1));
  };
  for (int i = 0; i < 4; ++i) come(&worker_, 1);
  come(nullptr, 2);
  come(&worker_, 3);
  EXPECT_EQ(members[4].Hear(1), "") << "the unauthenticated peer is closed";
  for (const int member : {0, 1, 2, 3, 5}) Converse(members[member], servers[member], 3);
}

// A submitter could otherwise keep members out with silent connections.
TEST_F(GrpcListenerTlsTest, SubmittersShareThePlacesOfThoseWithoutACertificate) {
  Open({.connections_max = 10, .unknown_max = 10, .address_share = 1, .tls = tls_.get()});
  const CertifiedKey submitter = Issue(Role::kSubmitter);
  TlsClient first = Handshake(&submitter), second = Handshake(nullptr),
            third = Handshake(&submitter);
  pollfd readable = {.fd = first.socket().get(), .events = POLLIN};
  EXPECT_EQ(poll(&readable, 1, kPatienceMs), 1);
  EXPECT_EQ(first.Hear(1), "") << "at most two may be open";
}

TEST_F(GrpcListenerTlsTest, TheLimitOfAnAddressCountsOnlyPeersWithoutACertificate) {
  Open({.connections_max = 20, .unknown_max = 10, .address_share = 0.5, .tls = tls_.get()});
  std::vector<TlsClient> members;
  std::vector<FileDescriptor> servers;
  for (int i = 0; i < 6; ++i) {  // more than the limit
    members.push_back(Handshake(&worker_));
    servers.push_back(Served());
  }
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(members[i].Say(kPreface));
    EXPECT_EQ(Receive(servers[i], kPreface.size()), kPreface);
  }
  const FileDescriptor other = HalfHandshake(2);
  std::vector<FileDescriptor> halves;
  std::vector<pollfd> hung_up;
  for (int i = 0; i < 3; ++i) {
    halves.push_back(HalfHandshake(1));
    hung_up.push_back({.fd = halves.back().get(), .events = POLLIN});
  }
  hung_up.push_back({.fd = other.get(), .events = POLLIN});
  EXPECT_EQ(poll(hung_up.data(), hung_up.size(), kPatienceMs), 1)
      << "two of four connections from 127.0.0.1 may do the handshake";
  EXPECT_EQ(hung_up.back().revents, 0) << "127.0.0.2 is not affected";
  Converse(members.front(), servers.front(), 1);
}

// Each key update asks the server for new keys and carries no data. A read that did not return
// after each record would never return.
TEST_F(GrpcListenerTlsTest, AFloodOfKeyUpdatesDelaysNoOther) {
  Open({.tls = tls_.get()});
  TlsClient flood = Handshake(nullptr, 2);
  const FileDescriptor flood_server = Served();
  TlsClient member = Handshake(&worker_);
  const FileDescriptor server = Served();
  ASSERT_TRUE(member.Say(kPreface));
  EXPECT_EQ(Receive(server, kPreface.size()), kPreface);
  std::atomic<bool> stopping = false;
  std::atomic<int64_t> updates = 0;
  std::thread flooding([&] {
    while (!stopping && SSL_key_update(flood.ssl(), SSL_KEY_UPDATE_REQUESTED) == 1 &&
           SSL_do_handshake(flood.ssl()) == 1) {
      ++updates;
    }
  });
  while (updates < 100) std::this_thread::yield();
  for (int call = 0; call < 50; ++call) Converse(member, server, 2 * call + 1);
  stopping = true;
  flooding.join();
  EXPECT_GT(updates, 100);
  ASSERT_TRUE(flood.Say(kPreface)) << "its own keys still fit";
  EXPECT_EQ(Receive(flood_server, kPreface.size()), kPreface);
}

TEST(GrpcListenerListenTest, AnAddressThatCannotBeUsedIsAnError) {
  const auto listener = GrpcListener::Listen("127.0.0.1:0", {});
  ASSERT_TRUE(listener.ok());
  const auto taken = GrpcListener::Listen(absl::StrCat("127.0.0.1:", (*listener)->port()), {});
  EXPECT_TRUE(absl::IsUnavailable(taken.status())) << taken.status();
  for (const char* wrong : {"127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", ":x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(GrpcListener::Listen(wrong, {}).status())) << wrong;
  }
  EXPECT_TRUE(GrpcListener::Listen("0.0.0.0:0", {}).ok());
  EXPECT_TRUE(GrpcListener::Listen("[::]:0", {}).ok());
  EXPECT_TRUE(GrpcListener::Listen("localhost:0", {}).ok());
}

}  // namespace
}  // namespace muster::grpc_listener_test
