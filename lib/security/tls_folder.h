// A folder with the certificates of one process, in the form in which Kubernetes mounts a Secret of
// type kubernetes.io/tls: tls.crt, tls.key, ca.crt.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "lib/security/identity.h"

typedef struct ssl_ctx_st SSL_CTX;

namespace muster {

struct TlsFolder {
  static constexpr char kCertificate[] = "tls.crt";
  static constexpr char kKey[] = "tls.key";
  static constexpr char kAuthority[] = "ca.crt";

  std::string path;

  std::string certificate() const { return path + "/" + kCertificate; }
  std::string key() const { return path + "/" + kKey; }
  std::string authority() const { return path + "/" + kAuthority; }
  // Whether the folder has tls.crt. A person with a token needs no certificate, only the authority.
  bool has_certificate() const;
};

// Checks that the folder has usable files for a process of `role`. Returns the errors of
// TlsServer::Open.
absl::Status CheckFiles(const TlsFolder& folder, Role role);

// A server's TLS context, read again when the files change: a renewed certificate is used for later
// connections. Thread-safe.
//
// TLS 1.3 only.
// - kGrpc: HTTP/2 only. A client may have no certificate; if it shows one, the authority must have
//   signed it and it must be valid now.
// - kBrowsers: HTTP/1.1 only. Never asks for a client certificate, because a browser would ask its
//   user.
class TlsServer {
 public:
  enum class Clients { kGrpc, kBrowsers };

  // The shortest time between two checks of the files.
  static constexpr absl::Duration kLookInterval = absl::Seconds(1);

  // Reads the files. The message of an error names the file. All errors have the reason
  // "CERTIFICATE_FILES".
  // - UNAVAILABLE: a file is missing or cannot be read.
  // - INVALID_ARGUMENT: a file is not PEM, the key does not match the certificate, or the
  //   certificate is not a coordinator's or has expired.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Open(TlsFolder folder,
                                                         Clients clients = Clients::kGrpc);

  // Returns the context for the next connection. If the files have become faulty, logs an error and
  // keeps the context that was read before.
  std::shared_ptr<SSL_CTX> Context() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns when the certificate of Context() expires.
  absl::Time ends() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Identifies one state of the files.
  struct Versions {
    std::string certificate, key, authority;
    friend bool operator==(const Versions&, const Versions&) = default;
  };
  struct Loaded {
    std::shared_ptr<SSL_CTX> context;
    absl::Time ends;
  };
  TlsServer(TlsFolder folder, Clients clients, Versions versions, Loaded loaded);

  static Versions Look(const TlsFolder& folder);
  static absl::StatusOr<Loaded> Load(const TlsFolder& folder, Clients clients);
  void LookAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TlsFolder folder_;
  const Clients clients_;
  mutable absl::Mutex mu_;
  Versions versions_ ABSL_GUARDED_BY(mu_);
  Loaded loaded_ ABSL_GUARDED_BY(mu_);
  absl::Duration looked_ ABSL_GUARDED_BY(mu_);  // when the files were last checked, by SteadyNow()
};

}  // namespace muster
