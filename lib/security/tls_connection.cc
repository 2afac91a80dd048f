#include "lib/security/tls_connection.h"

#include <glog/logging.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lib/security/certificate.h"
#include "lib/status/status.h"

namespace muster {
namespace {

struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};

}  // namespace

void TlsConnection::Deleter::operator()(SSL* ssl) const { SSL_free(ssl); }

TlsConnection::TlsConnection(std::shared_ptr<SSL_CTX> context, int socket)
    : ssl_(SSL_new(context.get())) {  // takes a reference to the context
  CHECK(ssl_ != nullptr);
  CHECK_EQ(SSL_set_fd(ssl_.get(), socket), 1);
  SSL_set_accept_state(ssl_.get());
}

TlsConnection::~TlsConnection() = default;

TlsConnection::Progress TlsConnection::Handshake() {
  ERR_clear_error();
  errno = 0;
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) return Progress::kDone;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Progress::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Progress::kWantsWrite;
    default:
      break;
  }
  std::array<char, 256> line{};
  if (const unsigned long error = ERR_get_error(); error != 0) {
    ERR_error_string_n(error, line.data(), line.size());
    fault_ = line.data();
  } else {
    fault_ = errno != 0 ? std::strerror(errno) : "the client closed the connection";
  }
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK) {
    fault_ += std::string(" (") + X509_verify_cert_error_string(verdict) + ")";
  }
  ERR_clear_error();
  return Progress::kFailed;
}

absl::StatusOr<std::optional<Identity>> TlsConnection::peer() const {
  const std::unique_ptr<X509, FreeCertificate> certificate(SSL_get1_peer_certificate(ssl_.get()));
  if (certificate == nullptr) return std::nullopt;
  ASSIGN_OR_RETURN(Identity identity, FactsOf(certificate.get()).identity);
  return identity;
}

absl::Time TlsConnection::peer_ends() const {
  const std::unique_ptr<X509, FreeCertificate> certificate(SSL_get1_peer_certificate(ssl_.get()));
  return certificate == nullptr ? absl::InfiniteFuture() : FactsOf(certificate.get()).ends;
}

ssize_t TlsConnection::Explain(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    default:
      ERR_clear_error();
      if (errno == 0 || errno == EAGAIN) errno = ECONNRESET;
      return -1;
  }
}

ssize_t TlsConnection::Read(char* bytes, size_t size) {
  size_t read = 0;
  ERR_clear_error();
  errno = 0;
  const int result = SSL_read_ex(ssl_.get(), bytes, size, &read);
  return result == 1 ? static_cast<ssize_t>(read) : Explain(result);
}

ssize_t TlsConnection::Write(const char* bytes, size_t size) {
  size_t written = 0;
  ERR_clear_error();
  errno = 0;
  const int result = SSL_write_ex(ssl_.get(), bytes, size, &written);
  return result == 1 ? static_cast<ssize_t>(written) : Explain(result);
}

}  // namespace muster
