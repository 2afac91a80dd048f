// Certificates of a site that has no authority of its own: made, issued, read.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "lib/security/identity.h"

typedef struct x509_st X509;

namespace muster {

// Both PEM. The key is EC P-256, unencrypted: whoever has it is who the certificate names.
struct CertifiedKey {
  std::string certificate;
  std::string key;
};

// A new authority, which signs itself and nothing but certificates of ends.
absl::StatusOr<CertifiedKey> MakeAuthority(absl::string_view name, absl::Time now,
                                           absl::Duration lifetime);

struct CertificateOrder {
  Identity identity;
  // DNS names and addresses under which it is dialled: of a coordinator.
  std::vector<std::string> hosts;
  absl::Duration lifetime;
};
// A coordinator's is for servers, all others are for clients. INVALID_ARGUMENT: the authority's PEM
// cannot be read, is no authority or ends before the certificate would; a coordinator without
// hosts, or a host that is no name and no address.
absl::StatusOr<CertifiedKey> IssueCertificate(const CertifiedKey& authority,
                                              const CertificateOrder& order, absl::Time now);

struct CertificateFacts {
  // Or why it names nobody of Muster.
  absl::StatusOr<Identity> identity;
  bool is_authority = false;
  std::vector<std::string> hosts;
  absl::Time begins, ends;
  std::string issuer;
  std::string sha256;  // of the whole certificate, hexadecimal
};
CertificateFacts FactsOf(X509* certificate);
// Of the first certificate in `pem`. INVALID_ARGUMENT: there is none.
absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem);

}  // namespace muster
