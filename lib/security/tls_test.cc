// Tests the server's side of TLS against OpenSSL's own client.
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/security/certificate.h"
#include "lib/security/tls_connection.h"
#include "lib/security/tls_folder.h"
#include "lib/status/status.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster::tls_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kDay = absl::Hours(24);

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path + ".new") << content;
  ASSERT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
}

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() {
    signal(SIGPIPE, SIG_IGN);
    folder_.path = ::testing::TempDir() + "/tls-XXXXXX";
    EXPECT_NE(mkdtemp(folder_.path.data()), nullptr);
    Install(Issue(authority_, {Role::kCoordinator, ""}));
  }
  static CertifiedKey Issue(const CertifiedKey& authority, Identity identity,
                            absl::Duration lifetime = kDay) {
    CertificateOrder order{.identity = std::move(identity), .lifetime = lifetime};
    if (order.identity.role == Role::kCoordinator) order.hosts = {"localhost"};
    return *IssueCertificate(authority, order, absl::Now());
  }
  void Install(const CertifiedKey& mine) {
    WriteFile(folder_.certificate(), mine.certificate);
    WriteFile(folder_.key(), mine.key);
    WriteFile(folder_.authority(), authority_.certificate);
  }

  struct Ends {
    FileDescriptor client, server;
  };
  static Ends Pair() {
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  }
  // A client's context, with or without a certificate.
  std::shared_ptr<SSL_CTX> Client(const CertifiedKey* mine) {
    std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
    SSL_CTX_load_verify_locations(context.get(), folder_.authority().c_str(), nullptr);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    if (mine != nullptr) {
      const std::string path = folder_.path + "/client.pem";
      WriteFile(path, mine->certificate + mine->key);
      EXPECT_EQ(SSL_CTX_use_certificate_file(context.get(), path.c_str(), SSL_FILETYPE_PEM), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey_file(context.get(), path.c_str(), SSL_FILETYPE_PEM), 1);
    }
    return context;
  }
  // Does the handshake, sends "ping" and expects it back. Returns the client's identity as the
  // server sees it, or the server's fault.
  std::string Converse(TlsServer& server, const CertifiedKey* mine, const char* groups = nullptr,
                       int version_max = TLS1_3_VERSION) {
    Ends ends = Pair();
    const auto context = Client(mine);
    SSL_CTX_set_max_proto_version(context.get(), version_max);
    if (groups != nullptr) SSL_CTX_set1_groups_list(context.get(), groups);
    std::thread client([&] {
      std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
      SSL_set_fd(ssl.get(), ends.client.get());
      if (SSL_connect(ssl.get()) == 1) {
        std::array<char, 4> back;
        SSL_write(ssl.get(), "ping", 4);
        SSL_read(ssl.get(), back.data(), 4);
        EXPECT_EQ(SSL_version(ssl.get()), TLS1_3_VERSION);
      }
      ends.client = FileDescriptor();
    });
    TlsConnection connection(server.Context(), ends.server.get());
    std::string answer;
    if (connection.Handshake() != TlsConnection::Progress::kDone) {
      answer = connection.fault();
    } else {
      std::array<char, TlsConnection::kRecordBytes> bytes;
      EXPECT_EQ(connection.Read(bytes.data(), bytes.size()), 4);
      EXPECT_EQ(connection.Write(bytes.data(), 4), 4);
      const auto peer = connection.peer();
      answer = !peer.ok()           ? std::string(peer.status().message())
               : !peer->has_value() ? "nobody"
                                    : ToString(**peer);
      if (mine != nullptr) {
        EXPECT_EQ(connection.peer_ends(), ReadCertificate(mine->certificate)->ends);
      }
    }
    ends.server = FileDescriptor();
    client.join();
    return answer;
  }

  const CertifiedKey authority_ = *MakeAuthority("test", absl::Now(), 30 * kDay);
  TlsFolder folder_;
};

TEST_F(TlsTest, IdentifiesClientsByTheirCertificates) {
  const auto server = TlsServer::Open(folder_);
  ASSERT_TRUE(server.ok()) << server.status();
  const CertifiedKey worker = Issue(authority_, {Role::kWorker, "worker-3"});
  const CertifiedKey ps = Issue(authority_, {Role::kPs, ""});

  EXPECT_EQ(Converse(**server, &worker), "worker/worker-3");
  EXPECT_EQ(Converse(**server, &ps), "ps");
  EXPECT_EQ(Converse(**server, nullptr), "nobody")
      << "a client without a certificate may have a token";
}

TEST_F(TlsTest, RefusesCertificatesOfOtherAuthorities) {
  const auto server = TlsServer::Open(folder_);
  ASSERT_TRUE(server.ok()) << server.status();
  const CertifiedKey other = *MakeAuthority("test", absl::Now(), 30 * kDay);
  const CertifiedKey strange = Issue(other, {Role::kAdmin, "eve"});
  const CertifiedKey ended = *IssueCertificate(
      authority_, {.identity = {Role::kWorker, "w-1"}, .lifetime = absl::Seconds(-1)}, absl::Now());
  const CertifiedKey server_own = Issue(authority_, {Role::kCoordinator, ""});

  EXPECT_THAT(Converse(**server, &strange), HasSubstr("certificate"));
  EXPECT_THAT(Converse(**server, &ended), HasSubstr("expired"));
  EXPECT_THAT(Converse(**server, &server_own), HasSubstr("purpose")) << "it is for servers";
}

// A handshake over a finite field of 8192 bits takes the server a tenth of a second.
TEST_F(TlsTest, DoesNotOfferExpensiveGroups) {
  const auto server = TlsServer::Open(folder_);
  ASSERT_TRUE(server.ok()) << server.status();
  const CertifiedKey worker = Issue(authority_, {Role::kWorker, "w-1"});
  EXPECT_THAT(Converse(**server, &worker, "ffdhe8192"), HasSubstr("no suitable key share"));
  EXPECT_EQ(Converse(**server, &worker, "P-256"), "worker/w-1");
}

// Older TLS allows a client to renegotiate on one connection as often as it likes.
TEST_F(TlsTest, RefusesOlderTls) {
  const auto server = TlsServer::Open(folder_);
  ASSERT_TRUE(server.ok()) << server.status();
  const CertifiedKey worker = Issue(authority_, {Role::kWorker, "w-1"});
  EXPECT_THAT(Converse(**server, &worker, nullptr, TLS1_2_VERSION),
              HasSubstr("unsupported protocol"));
}

TEST_F(TlsTest, UsesANewCertificateForLaterConnectionsAndIgnoresFaultyOnes) {
  const auto server = TlsServer::Open(folder_);
  ASSERT_TRUE(server.ok()) << server.status();
  const CertifiedKey worker = Issue(authority_, {Role::kWorker, "w-1"});
  auto await_look = [](absl::Duration since) {
    while (SteadyNow() - since < TlsServer::kLookInterval) std::this_thread::yield();
  };

  WriteFile(folder_.certificate(), "half a file");
  await_look(SteadyNow());
  EXPECT_EQ(Converse(**server, &worker), "worker/w-1") << "with the earlier certificate";

  const CertifiedKey renewed = Issue(authority_, {Role::kCoordinator, ""}, 2 * kDay);
  const absl::Time ends = ReadCertificate(renewed.certificate)->ends;
  Install(renewed);
  await_look(SteadyNow());
  EXPECT_EQ((*server)->ends(), ends) << "without any new connection";
  EXPECT_EQ(Converse(**server, &worker), "worker/w-1");
}

TEST_F(TlsTest, NamesUnusableFiles) {
  auto fault = [&] {
    const absl::Status status = TlsServer::Open(folder_).status();
    EXPECT_EQ(ReasonOf(status), "CERTIFICATE_FILES");
    return std::string(status.message());
  };
  Install(Issue(authority_, {Role::kWorker, "w-1"}));
  EXPECT_THAT(fault(), HasSubstr("not a coordinator's (worker/w-1)"));
  CertifiedKey mixed = Issue(authority_, {Role::kCoordinator, ""});
  mixed.key = Issue(authority_, {Role::kCoordinator, ""}).key;
  Install(mixed);
  EXPECT_THAT(fault(), HasSubstr("tls.key"));
  Install(*IssueCertificate(
      authority_,
      {.identity = {Role::kCoordinator, ""}, .hosts = {"a"}, .lifetime = absl::Seconds(-1)},
      absl::Now()));
  EXPECT_THAT(fault(), HasSubstr("expired on"));
  std::remove(folder_.authority().c_str());
  EXPECT_THAT(fault(), HasSubstr("ca.crt"));
}

}  // namespace
}  // namespace muster::tls_test
