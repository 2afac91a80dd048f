// An HTTPS client for tests.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

struct TlsFetchOptions {
  std::string authority;                       // file of the only authority that the client accepts
  absl::string_view protocol = "\10http/1.1";  // in ALPN's format: a length and a name
  std::string source = "127.0.0.1";            // the client's address
};

// One connection to a loopback port. The client expects "localhost" in the certificate. A wait of
// 20 s is a failure.
class TlsClient {
 public:
  TlsClient(int port, const TlsFetchOptions& options)
      : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free),
        socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    SSL_CTX_set_alpn_protos(context_.get(),
                            reinterpret_cast<const uint8_t*>(options.protocol.data()),
                            options.protocol.size());
    EXPECT_EQ(SSL_CTX_load_verify_locations(context_.get(), options.authority.c_str(),
                                            /*CApath=*/nullptr),
              1);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    const timeval patience{.tv_sec = 20};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in from{.sin_family = AF_INET};
    EXPECT_EQ(inet_pton(AF_INET, options.source.c_str(), &from.sin_addr), 1) << options.source;
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), socket_.get());
    SSL_set1_host(ssl_.get(), "localhost");
    handshake_done_ = SSL_connect(ssl_.get()) == 1;
  }

  bool handshake_done() const { return handshake_done_; }
  bool Write(absl::string_view bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) == std::ssize(bytes);
  }
  // Reads up to the end.
  std::string ReadAll() {
    std::string answer;
    char piece[16 << 10];
    for (int got; (got = SSL_read(ssl_.get(), piece, sizeof(piece))) > 0;) {
      answer.append(piece, static_cast<size_t>(got));
    }
    return answer;
  }

  // Blocks until the server hangs up. Returns false if a byte arrived, or nothing for 20 s.
  bool IsHungUpOn() {
    char byte;
    errno = 0;
    return SSL_read(ssl_.get(), &byte, 1) <= 0 && errno != EAGAIN;
  }

 private:
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  const FileDescriptor socket_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
  bool handshake_done_ = false;
};

// Returns the answer to a request for `path`, or "" if there was no connection.
inline std::string FetchOverTls(int port, absl::string_view path, const TlsFetchOptions& options) {
  TlsClient client(port, options);
  if (!client.handshake_done()) return "";
  EXPECT_TRUE(client.Write(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n")));
  return client.ReadAll();
}

}  // namespace muster
