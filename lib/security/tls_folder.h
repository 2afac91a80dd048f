// A folder with the certificates of one process, as Kubernetes mounts a Secret of type
// kubernetes.io/tls: tls.crt, tls.key, ca.crt.
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
  // A person with a token needs none: the authority alone says whom to believe.
  bool has_certificate() const;
};

// Whether a process of `role` has what it needs in its folder: the errors of TlsServer::Open.
absl::Status CheckFiles(const TlsFolder& folder, Role role);

// What a server needs to shake hands, read anew when the files change: a renewed certificate counts
// for connections that come after it. Thread-safe.
//
// TLS 1.3 only. For gRPC HTTP/2 only: a client may come without a certificate; one that it shows
// must be of the authority, and in force. For browsers HTTP/1.1 only, and nobody is asked for a
// certificate: a browser would ask its user.
class TlsServer {
 public:
  enum class Clients { kGrpc, kBrowsers };

  // Files are looked at again this long after the last look.
  static constexpr absl::Duration kLookInterval = absl::Seconds(1);

  // UNAVAILABLE (reason "CERTIFICATE_FILES"): a file is not there, or cannot be read;
  // INVALID_ARGUMENT (reason "CERTIFICATE_FILES"): it is no PEM, the key is another certificate's,
  // the certificate is no coordinator's or has ended. The message names the file.
  static absl::StatusOr<std::unique_ptr<TlsServer>> Open(TlsFolder folder,
                                                         Clients clients = Clients::kGrpc);

  // For the next connection. Files that have become faulty are passed over, with an error in the
  // log: what was read before stays in force.
  std::shared_ptr<SSL_CTX> Context() ABSL_LOCKS_EXCLUDED(mu_);

  // When the certificate ends that Context() has.
  absl::Time ends() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What tells one state of the files from another.
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
  absl::Duration looked_ ABSL_GUARDED_BY(mu_);  // of SteadyNow()
};

}  // namespace muster
