#include "services/coordinator/store/etcd_greeting.h"

#include <netdb.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cstdint>
#include <memory>

#include "absl/strings/strip.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/security/tls_folder.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {
namespace {

constexpr size_t kPieceBytes = 16 << 10;

struct Free {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

// Connects to the first address of `server` that answers before `end`. Returns an empty descriptor
// if none does. Each wait ends after `timeout`.
FileDescriptor ConnectTo(absl::string_view server, absl::Duration timeout, absl::Duration end) {
  const size_t colon = server.rfind(':');
  if (colon == absl::string_view::npos) return {};
  const absl::string_view host =
      absl::StripSuffix(absl::StripPrefix(server.substr(0, colon), "["), "]");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(std::string(host).c_str(), std::string(server.substr(colon + 1)).c_str(), &hints,
                  &list) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, Free> found(list);
  const timeval patience = absl::ToTimeval(timeout);
  for (const addrinfo* at = list; at != nullptr && SteadyNow() < end; at = at->ai_next) {
    FileDescriptor socket_fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    setsockopt(socket_fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(socket_fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(socket_fd.get(), at->ai_addr, at->ai_addrlen) == 0) return socket_fd;
  }
  return {};
}

std::unique_ptr<SSL_CTX, Free> ContextOf(const std::string& tls) {
  std::unique_ptr<SSL_CTX, Free> context(SSL_CTX_new(TLS_client_method()));
  static constexpr uint8_t kHttp2[] = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2));
  if (tls.empty()) return context;
  const TlsFolder folder{tls};
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // Refuses an encrypted key; OpenSSL would ask for its password on the terminal.
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_load_verify_locations(context.get(), folder.authority().c_str(), nullptr) != 1) {
    return nullptr;
  }
  if (folder.has_certificate() &&
      (SSL_CTX_use_certificate_chain_file(context.get(), folder.certificate().c_str()) != 1 ||
       SSL_CTX_use_PrivateKey_file(context.get(), folder.key().c_str(), SSL_FILETYPE_PEM) != 1)) {
    return nullptr;
  }
  return context;
}

// Returns true for alerts that reject the certificate of the process that receives them.
bool IsAboutCertificates(int alert) {
  return (alert >= SSL_AD_BAD_CERTIFICATE && alert <= SSL_AD_CERTIFICATE_UNKNOWN) ||
         alert == SSL_AD_UNKNOWN_CA || alert == SSL_AD_ACCESS_DENIED ||
         alert == TLS13_AD_CERTIFICATE_REQUIRED;
}

}  // namespace

EtcdGreeting GreetEtcd(absl::string_view server, const std::string& tls, absl::Duration timeout) {
  EtcdGreeting greeting;
  const absl::Duration end = SteadyNow() + timeout;
  const std::unique_ptr<SSL_CTX, Free> context = ContextOf(tls);
  if (context == nullptr) {
    ERR_clear_error();
    return greeting;
  }
  const FileDescriptor socket_fd = ConnectTo(server, timeout, end);
  if (!socket_fd) return greeting;
  const std::unique_ptr<SSL, Free> ssl(SSL_new(context.get()));
  // Memory BIOs, because OpenSSL's socket BIO writes with write(), and a closed socket raises
  // SIGPIPE.
  BIO* const heard = BIO_new(BIO_s_mem());
  BIO* const said = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), heard, said);  // transfers the ownership of both
  SSL_set_connect_state(ssl.get());
  while (SteadyNow() < end) {
    ERR_clear_error();
    char piece[kPieceBytes];
    // SSL_read() also runs the handshake. With TLS 1.3 the server checks our certificate after our
    // side has finished the handshake. So the loop continues until the server sends data or an
    // alert.
    const int read = SSL_read(ssl.get(), piece, sizeof(piece));
    const int error = SSL_get_error(ssl.get(), read);
    if (SSL_is_init_finished(ssl.get())) greeting.speaks_tls = true;
    if (read > 0) break;  // the server accepted us and sent data
    if (error != SSL_ERROR_WANT_READ) {
      const int alert = ERR_GET_REASON(ERR_peek_error()) - SSL_AD_REASON_OFFSET;
      if (alert > 0) greeting.speaks_tls = true;
      if (IsAboutCertificates(alert)) greeting.objection = SSL_alert_desc_string_long(alert);
      break;
    }
    // Sends everything at once. If the server closes with unread data, the reset can overtake its
    // alert.
    const int size = BIO_read(said, piece, sizeof(piece));
    if (size > 0 && send(socket_fd.get(), piece, size, MSG_NOSIGNAL) != size) break;
    const ssize_t got = recv(socket_fd.get(), piece, sizeof(piece), 0);
    if (got <= 0) break;
    BIO_write(heard, piece, static_cast<int>(got));
  }
  greeting.has_certificate = SSL_get_certificate(ssl.get()) != nullptr;
  ERR_clear_error();
  return greeting;
}

}  // namespace muster
