// Creates, issues and reads certificates, for sites without an authority of their own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/security/identity.h"

typedef struct x509_st X509;

namespace muster {

// A certificate and its key, both in PEM. The key is EC P-256, unencrypted: any process that has it
// can act as the certificate's subject.
struct CertifiedKey {
  std::string certificate;
  std::string key;
};

// Creates a new authority. It signs itself, and may sign only end-entity certificates. Returns
// INTERNAL if OpenSSL makes no key.
absl::StatusOr<CertifiedKey> MakeAuthority(absl::string_view name, absl::Time now,
                                           absl::Duration lifetime);

struct CertificateOrder {
  Identity identity;
  // DNS names and addresses by which clients dial it. A coordinator needs at least one, others need
  // none.
  std::vector<std::string> hosts;
  absl::Duration lifetime;
};
// Issues a certificate: a coordinator's is for servers, all others are for clients. Returns
// INVALID_ARGUMENT if:
// - the authority's PEM cannot be parsed, is not an authority's, does not match its key, or expires
//   before the certificate would.
// - a coordinator has no hosts, or a host is neither a name nor an address.
absl::StatusOr<CertifiedKey> IssueCertificate(const CertifiedKey& authority,
                                              const CertificateOrder& order, absl::Time now);

struct CertificateFacts {
  // The identity, or why the certificate has no Muster identity.
  absl::StatusOr<Identity> identity;
  bool is_authority = false;
  std::vector<std::string> hosts;
  absl::Time begins, ends;
  std::string issuer;
  std::string sha256;  // of the whole certificate, in hexadecimal
};
CertificateFacts FactsOf(X509* certificate);
// Reads the first certificate in `pem`. Returns INVALID_ARGUMENT if there is none.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem);

}  // namespace muster
