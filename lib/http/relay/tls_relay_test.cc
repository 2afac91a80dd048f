#include "lib/http/relay/tls_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "lib/http/http_client.h"
#include "lib/http/http_server.h"
#include "lib/http/relay/tls_client.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"

namespace muster::tls_relay_test {
namespace {

using ::testing::HasSubstr;

class TlsRelayTest : public ::testing::Test {
 protected:
  TlsRelayTest() {
    folder_.path = ::testing::TempDir() + "/relay-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.path.data()), nullptr);
    Certify("localhost");
    std::ofstream(folder_.authority()) << authority_.certificate;
    tls_ = *TlsServer::Open(folder_, TlsServer::Clients::kBrowsers);
    server_ = *HttpServer::Start({.address = "127.0.0.1:0"}, [](const HttpRequest& request) {
      return HttpResponse{.body = request.path == "/large" ? std::string(3 << 20, 'x')
                                                           : "hello " + request.path};
    });
    Restart(absl::Seconds(5));
  }
  void Certify(const std::string& host) {
    CertificateOrder order{.identity = {Role::kCoordinator, ""}, .lifetime = absl::Hours(24)};
    order.hosts = {host};
    const CertifiedKey mine = *IssueCertificate(authority_, order, absl::Now());
    std::ofstream(folder_.certificate()) << mine.certificate;
    std::ofstream(folder_.key()) << mine.key;
  }
  void Restart(absl::Duration handshake_max, int connections_max = 64, int of_address_max = 48,
               absl::Duration request_max = absl::Hours(1)) {
    relay_.reset();
    auto relay = TlsRelay::Listen({.address = "127.0.0.1:0",
                                   .tls = tls_.get(),
                                   .target_port = server_->port(),
                                   .connections_max = connections_max,
                                   .of_address_max = of_address_max,
                                   .handshake_max = handshake_max,
                                   .request_max = request_max});
    ASSERT_TRUE(relay.ok()) << relay.status();
    relay_ = *std::move(relay);
  }

  std::string Get(const std::string& path) {
    return FetchOverTls(relay_->port(), path, {.authority = folder_.authority()});
  }

  const CertifiedKey authority_ = *MakeAuthority("test", absl::Now(), absl::Hours(48));
  TlsFolder folder_;
  std::unique_ptr<TlsServer> tls_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<TlsRelay> relay_;
};

TEST_F(TlsRelayTest, AnAnswerArrivesComplete) {
  EXPECT_THAT(Get("/a"), HasSubstr("\r\n\r\nhello /a"));
  const std::string large = Get("/large");
  EXPECT_EQ(large.size() - large.find("\r\n\r\n") - 4, 3 << 20);
}

TEST_F(TlsRelayTest, AClientThatWantsHttp2IsRefused) {
  EXPECT_EQ(
      FetchOverTls(relay_->port(), "/a", {.authority = folder_.authority(), .protocol = "\2h2"}),
      "");
}

TEST_F(TlsRelayTest, AClientThatTrustsAnotherAuthoritySendsNoRequest) {
  const std::string theirs = folder_.path + "/theirs.crt";
  std::ofstream(theirs) << MakeAuthority("test", absl::Now(), absl::Hours(48))->certificate;

  EXPECT_EQ(FetchOverTls(relay_->port(), "/a", {.authority = theirs}), "");
}

// The old certificate has a name that no client asks for.
TEST_F(TlsRelayTest, ARenewedCertificateIsUsedForNewConnections) {
  relay_.reset();
  Certify("elsewhere.example.org");
  tls_ = *TlsServer::Open(folder_, TlsServer::Clients::kBrowsers);
  Restart(absl::Seconds(5));
  ASSERT_EQ(Get("/a"), "");

  Certify("localhost");

  std::string answer;
  for (const absl::Time end = absl::Now() + absl::Seconds(30); answer.empty();) {
    ASSERT_LT(absl::Now(), end) << "the relay still shows the old certificate";
    answer = Get("/a");
  }
  EXPECT_THAT(answer, HasSubstr("hello /a"));
}

TEST_F(TlsRelayTest, AClientWithoutAHandshakeIsHungUpOnAndOthersAreServed) {
  Restart(/*handshake_max=*/absl::Milliseconds(100), /*connections_max=*/2);
  HttpClient silent(relay_->port()), plain(relay_->port());
  plain.Write("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(Get("/b"), HasSubstr("hello /b"));  // after a place has become free
  plain.ReadAll();
  silent.ReadAll();
}

TEST_F(TlsRelayTest, AClientWithoutAHandshakeMakesRoomForOthersEarly) {
  Restart(/*handshake_max=*/absl::Hours(1), /*connections_max=*/2);
  HttpClient silent(relay_->port()), silent_too(relay_->port());
  EXPECT_THAT(Get("/b"), HasSubstr("hello /b"));
  silent.ReadAll();
}

// The target has two threads. Clients that only do the handshake, which costs them little, would
// occupy both if the relay connected them.
TEST_F(TlsRelayTest, ClientsWithoutARequestMakeRoomAndNeverReachTheTarget) {
  for (const absl::string_view said : {"", "GET / HTTP/1.1\r\nHost: "}) {
    Restart(/*handshake_max=*/absl::Seconds(20), /*connections_max=*/6);
    std::vector<std::unique_ptr<TlsClient>> idle;
    for (int i = 0; i < 6; ++i) {
      idle.push_back(std::make_unique<TlsClient>(
          relay_->port(), TlsFetchOptions{.authority = folder_.authority()}));
      ASSERT_TRUE(idle.back()->handshake_done());
      ASSERT_TRUE(said.empty() || idle.back()->Write(said));
    }
    EXPECT_THAT(Get("/b"), HasSubstr("hello /b"));
    EXPECT_TRUE(idle.front()->IsHungUpOn());
  }
}

TEST_F(TlsRelayTest, AClientThatDoesNotEndItsRequestIsHungUpOn) {
  Restart(absl::Hours(1), /*connections_max=*/64, /*of_address_max=*/48,
          /*request_max=*/absl::Milliseconds(100));
  TlsClient slow(relay_->port(), {.authority = folder_.authority()});
  ASSERT_TRUE(slow.handshake_done());
  ASSERT_TRUE(slow.Write("GET / HTTP/1.1\r\n"));
  EXPECT_TRUE(slow.IsHungUpOn());
}

TEST_F(TlsRelayTest, OneAddressLeavesRoomForOthers) {
  absl::Notification asked, answer;
  server_ = *HttpServer::Start({.address = "127.0.0.1:0"}, [&](const HttpRequest& request) {
    if (request.path == "/late") {
      asked.Notify();
      answer.WaitForNotification();
    }
    return HttpResponse{.body = "hello " + request.path};
  });
  Restart(absl::Seconds(5), /*connections_max=*/2, /*of_address_max=*/1);
  std::string late;
  std::thread first([&] { late = Get("/late"); });
  asked.WaitForNotification();

  EXPECT_EQ(Get("/b"), "") << "a connection of the same address";
  EXPECT_THAT(
      FetchOverTls(relay_->port(), "/c", {.authority = folder_.authority(), .source = "127.0.0.2"}),
      HasSubstr("hello /c"));

  answer.Notify();
  first.join();
  EXPECT_THAT(late, HasSubstr("hello /late"));
}

TEST_F(TlsRelayTest, InvalidAddressesAndPortsInUseAreErrors) {
  EXPECT_TRUE(
      absl::IsInvalidArgument(TlsRelay::Listen({.address = "x", .tls = tls_.get()}).status()));
  EXPECT_TRUE(absl::IsUnavailable(
      TlsRelay::Listen({.address = absl::StrCat("127.0.0.1:", relay_->port()), .tls = tls_.get()})
          .status()));
}

}  // namespace
}  // namespace muster::tls_relay_test
