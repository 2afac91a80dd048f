#include "lib/security/tls_folder.h"

#include <glog/logging.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/security/certificate.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Removes OpenSSL's errors of this thread and returns the first, which is the cause.
std::string TakeErrors() {
  std::string text;
  while (const unsigned long error = ERR_get_error()) {
    std::array<char, 256> line;
    ERR_error_string_n(error, line.data(), line.size());
    if (text.empty()) text = line.data();
  }
  return text;
}

absl::Status FileFault(absl::StatusCode code, const std::string& file, absl::string_view why) {
  return WithReason(absl::Status(code, absl::StrCat(file, ": ", why)), "CERTIFICATE_FILES");
}

absl::Status CheckReadable(const std::string& file) {
  if (access(file.c_str(), R_OK) == 0) return absl::OkStatus();
  return FileFault(absl::StatusCode::kUnavailable, file,
                   absl::StrCat(std::strerror(errno),
                                ": muster certs issue makes it, or a Secret is mounted there"));
}

// Chooses `protocol` in ALPN (RFC 7301). Refuses clients that do not offer it.
int ChooseProtocol(absl::string_view protocol, const unsigned char** chosen,
                   unsigned char* chosen_bytes, const unsigned char* offered,
                   unsigned int offered_bytes) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, chosen_bytes,
                            reinterpret_cast<const unsigned char*>(protocol.data()),
                            protocol.size(), offered, offered_bytes) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

int ChooseHttp2(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                const unsigned char* offered, unsigned int offered_bytes, void*) {
  return ChooseProtocol("\2h2", chosen, chosen_bytes, offered, offered_bytes);
}

int ChooseHttp1(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                const unsigned char* offered, unsigned int offered_bytes, void*) {
  return ChooseProtocol("\10http/1.1", chosen, chosen_bytes, offered, offered_bytes);
}

std::string VersionOf(const std::string& file) {
  struct stat facts;
  if (stat(file.c_str(), &facts) != 0) return absl::StrCat("errno ", errno);
  return absl::StrCat(facts.st_dev, "-", facts.st_ino, "-", facts.st_size, "-",
                      facts.st_mtim.tv_sec, ".", facts.st_mtim.tv_nsec);
}

// Loads the files into `into`. Requires a valid certificate of `role`.
absl::StatusOr<CertificateFacts> LoadFiles(const TlsFolder& folder, Role role, SSL_CTX& into) {
  constexpr auto kFaulty = absl::StatusCode::kInvalidArgument;
  for (const std::string& file : {folder.certificate(), folder.key(), folder.authority()}) {
    RETURN_IF_ERROR(CheckReadable(file));
  }
  ERR_clear_error();
  // Refuse an encrypted key; otherwise OpenSSL would ask the terminal for the passphrase.
  SSL_CTX_set_default_passwd_cb(&into, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(&into, folder.certificate().c_str()) != 1) {
    return FileFault(kFaulty, folder.certificate(), TakeErrors());
  }
  if (SSL_CTX_use_PrivateKey_file(&into, folder.key().c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(&into) != 1) {
    return FileFault(kFaulty, folder.key(), TakeErrors());
  }
  if (SSL_CTX_load_verify_locations(&into, folder.authority().c_str(), nullptr) != 1) {
    return FileFault(kFaulty, folder.authority(), TakeErrors());
  }
  CertificateFacts facts = FactsOf(SSL_CTX_get0_certificate(&into));
  if (!facts.identity.ok() || facts.identity->role != role) {
    const std::string wanted = ToString(Identity{.role = role, .name = ""});
    return FileFault(kFaulty, folder.certificate(),
                     absl::StrCat("is not a ", wanted, "'s (",
                                  facts.identity.ok() ? ToString(*facts.identity)
                                                      : facts.identity.status().message(),
                                  "): it needs the URI spiffe://muster/", wanted));
  }
  if (facts.ends <= absl::Now()) {
    return FileFault(kFaulty, folder.certificate(),
                     absl::StrCat("expired on ", absl::FormatTime(facts.ends)));
  }
  return facts;
}

}  // namespace

bool TlsFolder::has_certificate() const { return access(certificate().c_str(), F_OK) == 0; }

absl::Status CheckFiles(const TlsFolder& folder, Role role) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()),
                                                                  SSL_CTX_free);
  CHECK(context != nullptr) << TakeErrors();
  return LoadFiles(folder, role, *context).status();
}

TlsServer::TlsServer(TlsFolder folder, Clients clients, Versions versions, Loaded loaded)
    : folder_(std::move(folder)),
      clients_(clients),
      versions_(std::move(versions)),
      loaded_(std::move(loaded)),
      looked_(SteadyNow()) {}

TlsServer::Versions TlsServer::Look(const TlsFolder& folder) {
  return {.certificate = VersionOf(folder.certificate()),
          .key = VersionOf(folder.key()),
          .authority = VersionOf(folder.authority())};
}

absl::StatusOr<TlsServer::Loaded> TlsServer::Load(const TlsFolder& folder, Clients clients) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  CHECK(context != nullptr) << TakeErrors();
  SSL_CTX* const made = context.get();
  CHECK_EQ(SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION), 1);
  // Exclude TLS 1.3's finite-field groups: one handshake costs the server a tenth of a second, and
  // a client nothing (CVE-2024-41996).
  CHECK_EQ(SSL_CTX_set1_groups_list(made, "X25519:P-256:P-384"), 1);
  // A read returns after each record, so that one client's empty records cannot keep others
  // waiting.
  SSL_CTX_clear_mode(made, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_num_tickets(made, 0);  // a resumed session would skip the certificate check
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                             SSL_MODE_RELEASE_BUFFERS);
  const bool to_browsers = clients == Clients::kBrowsers;
  SSL_CTX_set_alpn_select_cb(made, to_browsers ? ChooseHttp1 : ChooseHttp2, nullptr);
  ASSIGN_OR_RETURN(const CertificateFacts facts, LoadFiles(folder, Role::kCoordinator, *made));
  SSL_CTX_set_verify(made, to_browsers ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
  return Loaded{.context = context, .ends = facts.ends};
}

absl::StatusOr<std::unique_ptr<TlsServer>> TlsServer::Open(TlsFolder folder, Clients clients) {
  Versions versions = Look(folder);
  ASSIGN_OR_RETURN(Loaded loaded, Load(folder, clients));
  return std::unique_ptr<TlsServer>(
      new TlsServer(std::move(folder), clients, std::move(versions), std::move(loaded)));
}

// Reads the files again if they have changed. They may not match while a Secret is being replaced;
// the next check finds them complete.
void TlsServer::LookAgain() {
  const absl::Duration now = SteadyNow();
  if (now - looked_ < kLookInterval) return;
  looked_ = now;
  Versions versions = Look(folder_);
  if (versions == versions_) return;
  absl::StatusOr<Loaded> loaded = Load(folder_, clients_);
  if (loaded.ok()) {
    loaded_ = *std::move(loaded);
    versions_ = std::move(versions);
    LOG(INFO) << folder_.path << ": new certificate, valid until "
              << absl::FormatTime(loaded_.ends);
  } else {
    LOG_EVERY_N(ERROR, 60) << "the certificate is kept that was there before: " << loaded.status();
  }
}

std::shared_ptr<SSL_CTX> TlsServer::Context() {
  absl::MutexLock lock(&mu_);
  LookAgain();
  return loaded_.context;
}

absl::Time TlsServer::ends() {
  absl::MutexLock lock(&mu_);
  LookAgain();
  return loaded_.ends;
}

}  // namespace muster
