// A browser's part over TLS, in tests.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/transport/file_descriptor.h"

namespace muster {

struct TlsFetchOptions {
  std::string authority;                       // file of the only authority that is believed
  absl::string_view protocol = "\10http/1.1";  // as ALPN has it: a length and a name
};

// What a port of loopback answers to a request for `path`, from one who wants "localhost" in its
// certificate. "": no connection came about. Whatever lasts for 20 s is a failure.
inline std::string FetchOverTls(int port, absl::string_view path, const TlsFetchOptions& options) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const uint8_t*>(options.protocol.data()),
                          options.protocol.size());
  EXPECT_EQ(
      SSL_CTX_load_verify_locations(context.get(), options.authority.c_str(), /*CApath=*/nullptr),
      1);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  const FileDescriptor socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = 20};
  setsockopt(socket_fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
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

}  // namespace muster
