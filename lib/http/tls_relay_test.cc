#include "lib/http/tls_relay.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lib/http/http_client.h"
#include "lib/http/http_server.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/transport/file_descriptor.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class TlsRelayTest : public ::testing::Test {
 protected:
  TlsRelayTest() {
    folder_.path = ::testing::TempDir() + "/relay-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.path.data()), nullptr);
    const CertifiedKey authority = *MakeAuthority("test", absl::Now(), absl::Hours(48));
    CertificateOrder order{.identity = {Role::kCoordinator, ""}, .lifetime = absl::Hours(24)};
    order.hosts = {"localhost"};
    const CertifiedKey mine = *IssueCertificate(authority, order, absl::Now());
    std::ofstream(folder_.certificate()) << mine.certificate;
    std::ofstream(folder_.key()) << mine.key;
    std::ofstream(folder_.authority()) << authority.certificate;
    tls_ = *TlsServer::Open(folder_, TlsServer::Clients::kBrowsers);
    server_ = *HttpServer::Start({.address = "127.0.0.1:0"}, [](const HttpRequest& request) {
      return HttpResponse{.body = request.path == "/large" ? std::string(3 << 20, 'x')
                                                           : "hello " + request.path};
    });
    Restart(absl::Seconds(5));
  }
  void Restart(absl::Duration handshake_max, int connections_max = 64) {
    relay_.reset();
    auto relay = TlsRelay::Listen({.address = "127.0.0.1:0",
                                   .tls = tls_.get(),
                                   .target_port = server_->port(),
                                   .connections_max = connections_max,
                                   .handshake_max = handshake_max});
    ASSERT_TRUE(relay.ok()) << relay.status();
    relay_ = *std::move(relay);
  }

  // As a browser: HTTP/1.1 or nothing, the authority alone believed. "": no connection came about.
  std::string Get(const std::string& path, absl::string_view protocol = "\10http/1.1") {
    const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const uint8_t*>(protocol.data()),
                            protocol.size());
    SSL_CTX_load_verify_locations(context.get(), folder_.authority().c_str(), nullptr);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    const FileDescriptor socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(relay_->port())};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), socket_fd.get());
    SSL_set1_host(ssl.get(), "localhost");
    if (SSL_connect(ssl.get()) != 1) return "";
    const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(SSL_write(ssl.get(), request.data(), static_cast<int>(request.size())),
              std::ssize(request));
    std::string answer;
    char piece[16 << 10];
    for (int got; (got = SSL_read(ssl.get(), piece, sizeof(piece))) > 0;) answer.append(piece, got);
    return answer;
  }

  TlsFolder folder_;
  std::unique_ptr<TlsServer> tls_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<TlsRelay> relay_;
};

TEST_F(TlsRelayTest, AnAnswerComesThroughWhole) {
  EXPECT_THAT(Get("/a"), HasSubstr("\r\n\r\nhello /a"));
  const std::string large = Get("/large");
  EXPECT_EQ(large.size() - large.find("\r\n\r\n") - 4, 3 << 20);
}

TEST_F(TlsRelayTest, WhoWantsHttp2IsRefused) { EXPECT_EQ(Get("/a", "\2h2"), ""); }

TEST_F(TlsRelayTest, WhoDoesNotShakeHandsIsHungUpOnAndOthersAreServed) {
  Restart(/*handshake_max=*/absl::Milliseconds(100), /*connections_max=*/2);
  HttpClient silent(relay_->port()), plain(relay_->port());
  plain.Write("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(Get("/b"), HasSubstr("hello /b"));  // once there is room
  plain.ReadAll();
  silent.ReadAll();
}

TEST_F(TlsRelayTest, WhatIsNoAddressAndWhatIsTakenIsSaid) {
  EXPECT_TRUE(
      absl::IsInvalidArgument(TlsRelay::Listen({.address = "x", .tls = tls_.get()}).status()));
  EXPECT_TRUE(absl::IsUnavailable(
      TlsRelay::Listen({.address = absl::StrCat("127.0.0.1:", relay_->port()), .tls = tls_.get()})
          .status()));
}

}  // namespace
}  // namespace muster
