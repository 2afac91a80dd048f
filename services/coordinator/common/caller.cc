#include "services/coordinator/common/caller.h"

#include <glog/logging.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr absl::string_view kNobody = "-";
constexpr absl::string_view kTrustDomain = "spiffe://muster/";
constexpr size_t kKeyBytes = 32;

}  // namespace

std::string Caller::Name() const {
  if (!token.empty()) return absl::StrCat("token ", token);
  return certificate.has_value() ? muster::ToString(*certificate) : "anonymous";
}

std::string Caller::ToString() const {
  return address.empty() ? Name() : absl::StrCat(Name(), " from ", address);
}

CallerStamp::CallerStamp() : key_(kKeyBytes, '\0') {
  CHECK_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(key_.data()), kKeyBytes), 1);
}

std::string CallerStamp::SignatureOf(absl::string_view text) const {
  std::string signature(EVP_MAX_MD_SIZE, '\0');
  unsigned int bytes = 0;
  CHECK(HMAC(EVP_sha256(), key_.data(), kKeyBytes,
             reinterpret_cast<const unsigned char*>(text.data()), text.size(),
             reinterpret_cast<unsigned char*>(signature.data()), &bytes) != nullptr);
  return absl::BytesToHexString(absl::string_view(signature).substr(0, bytes));
}

// Format: "IDENTITY ADDRESS SIGNATURE", with "-" as the identity of an unknown caller.
std::string CallerStamp::Sign(const std::optional<Identity>& client,
                              absl::string_view address) const {
  const std::string text =
      absl::StrCat(client ? ToString(*client) : std::string(kNobody), " ", address);
  return absl::StrCat(text, " ", SignatureOf(text));
}

absl::StatusOr<Caller> CallerStamp::Read(absl::string_view stamp) const {
  const size_t last = stamp.rfind(' '), first = stamp.find(' ');
  if (last == absl::string_view::npos || first == last) {
    return absl::InvalidArgumentError("no stamp");
  }
  const absl::string_view text = stamp.substr(0, last);
  const std::string expected = SignatureOf(text), given(stamp.substr(last + 1));
  if (given.size() != expected.size() ||
      CRYPTO_memcmp(given.data(), expected.data(), expected.size()) != 0) {
    return absl::InvalidArgumentError("the stamp is not signed by this process");
  }
  Caller caller{.address = std::string(text.substr(first + 1))};
  if (const absl::string_view identity = text.substr(0, first); identity != kNobody) {
    ASSIGN_OR_RETURN(caller.certificate, ParseIdentityUri(absl::StrCat(kTrustDomain, identity)));
  }
  return caller;
}

absl::Status CheckSpeaksAs(const std::optional<Identity>& certificate, Role role,
                           const std::string& member) {
  if (!certificate) return absl::OkStatus();
  const bool is_member = role == Role::kWorker || role == Role::kPs;
  const bool is_it = is_member && certificate->role == role &&
                     (certificate->name.empty() || certificate->name == member);
  if (is_it) return absl::OkStatus();
  return WithReason(absl::PermissionDeniedError(absl::StrCat(
                        "the certificate is ", ToString(*certificate), "'s and cannot speak as ",
                        ToString(Identity{.role = role, .name = member}),
                        ": start it with --name as in its certificate, or issue it another")),
                    "NOT_YOUR_NAME");
}

}  // namespace muster
