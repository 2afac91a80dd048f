#include "lib/security/certificate.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/status/status.h"

namespace muster {
namespace {

template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Memory = std::unique_ptr<BIO, Free<BIO_free_all>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

// How long before `now` a certificate begins, because the clocks of machines differ a little.
constexpr absl::Duration kBackdated = absl::Minutes(5);

Memory ReaderOf(absl::string_view bytes) {
  return Memory(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}
std::string TextOf(BIO* memory) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory, &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<Certificate> ParseCertificate(absl::string_view pem) {
  Certificate certificate(PEM_read_bio_X509(ReaderOf(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) return absl::InvalidArgumentError("no certificate in PEM");
  return certificate;
}
absl::StatusOr<Key> ParseKey(absl::string_view pem) {
  // The callback returns no passphrase. Without a callback, OpenSSL would ask the terminal for one.
  auto none = [](char*, int, int, void*) { return 0; };
  Key key(PEM_read_bio_PrivateKey(ReaderOf(pem).get(), nullptr, none, nullptr));
  ERR_clear_error();
  if (key == nullptr) return absl::InvalidArgumentError("no unencrypted private key in PEM");
  return key;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

void AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  CHECK(extension != nullptr) << OBJ_nid2sn(kind) << " = " << value;
  CHECK_EQ(X509_add_ext(certificate, extension, -1), 1);
  X509_EXTENSION_free(extension);
}

// Returns an unsigned certificate with the common fields.
Certificate Begin(EVP_PKEY* key, absl::string_view subject, absl::Time now, absl::Time ends) {
  Certificate certificate(X509_new());
  CHECK(certificate != nullptr);
  X509_set_version(certificate.get(), X509_VERSION_3);
  std::array<unsigned char, 16> serial;
  CHECK_EQ(RAND_bytes(serial.data(), static_cast<int>(serial.size())), 1);
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7f) |
                                         1);  // keeps the serial number positive and of full length
  BIGNUM* const number = BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  ASN1_TIME_set(X509_getm_notBefore(certificate.get()), absl::ToTimeT(now - kBackdated));
  ASN1_TIME_set(X509_getm_notAfter(certificate.get()), absl::ToTimeT(ends));
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_NID(X509_get_subject_name(certificate.get()), NID_commonName,
                             MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(subject.data()),
                             static_cast<int>(subject.size()), -1, 0);
  return certificate;
}

CertifiedKey Sign(Certificate certificate, EVP_PKEY* key, EVP_PKEY* by) {
  CHECK_GT(X509_sign(certificate.get(), by, EVP_sha256()), 0);
  const Memory text(BIO_new(BIO_s_mem())), secret(BIO_new(BIO_s_mem()));
  CHECK_EQ(PEM_write_bio_X509(text.get(), certificate.get()), 1);
  CHECK_EQ(PEM_write_bio_PrivateKey(secret.get(), key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  return {.certificate = TextOf(text.get()), .key = TextOf(secret.get())};
}

bool IsAddress(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> parsed;
  return inet_pton(AF_INET, host.c_str(), parsed.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), parsed.data()) == 1;
}
// A name by RFC 1123, but underscores are allowed too. A leading "*." stands for any one label.
bool IsDnsName(absl::string_view host) {
  absl::ConsumePrefix(&host, "*.");
  return !host.empty() && host.size() <= 253 && absl::ascii_isalnum(host.front()) &&
         std::ranges::all_of(host, [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
         });
}

}  // namespace

absl::StatusOr<CertifiedKey> MakeAuthority(absl::string_view name, absl::Time now,
                                           absl::Duration lifetime) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return absl::InternalError("OpenSSL makes no key");
  Certificate certificate = Begin(key.get(), name, now, now + lifetime);
  X509* const self = certificate.get();
  X509_set_issuer_name(self, X509_get_subject_name(self));
  AddExtension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(self, self, NID_subject_key_identifier, "hash");
  return Sign(std::move(certificate), key.get(), key.get());
}

absl::StatusOr<CertifiedKey> IssueCertificate(const CertifiedKey& authority,
                                              const CertificateOrder& order, absl::Time now) {
  auto parsed = ParseCertificate(authority.certificate);
  if (!parsed.ok()) return Annotate(parsed.status(), "the authority");
  X509* const issuer = parsed->get();
  auto issuer_key = ParseKey(authority.key);
  if (!issuer_key.ok()) return Annotate(issuer_key.status(), "the authority");
  if (X509_check_ca(issuer) != 1 || X509_check_private_key(issuer, issuer_key->get()) != 1) {
    return absl::InvalidArgumentError(
        "the authority's certificate is not one of an authority, or the key does not match it");
  }
  const absl::Time ends = now + order.lifetime;
  if (const absl::Time last = TimeOf(X509_get0_notAfter(issuer)); ends > last) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the authority ends on ", absl::FormatTime(last, absl::UTCTimeZone()),
        ", before the certificate would: ask for a shorter one, or make a new authority"));
  }
  const bool serves = order.identity.role == Role::kCoordinator;
  if (serves && order.hosts.empty()) {
    return absl::InvalidArgumentError(
        "a coordinator's certificate needs the names and addresses by which it is dialled");
  }
  std::vector<std::string> names = {absl::StrCat("URI:", UriOf(order.identity))};
  for (const std::string& host : order.hosts) {
    if (IsAddress(host)) {
      names.push_back(absl::StrCat("IP:", host));
    } else if (IsDnsName(host)) {
      names.push_back(absl::StrCat("DNS:", host));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("'", host, "' is no host name and no address"));
    }
  }
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return absl::InternalError("OpenSSL makes no key");
  Certificate certificate = Begin(key.get(), ToString(order.identity), now, ends);
  X509* const made = certificate.get();
  X509_set_issuer_name(made, X509_get_subject_name(issuer));
  AddExtension(made, issuer, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(made, issuer, NID_key_usage, "critical,digitalSignature");
  AddExtension(made, issuer, NID_ext_key_usage, serves ? "serverAuth" : "clientAuth");
  AddExtension(made, issuer, NID_subject_key_identifier, "hash");
  AddExtension(made, issuer, NID_authority_key_identifier, "keyid");
  AddExtension(made, issuer, NID_subject_alt_name, absl::StrJoin(names, ","));
  return Sign(std::move(certificate), key.get(), issuer_key->get());
}

CertificateFacts FactsOf(X509* certificate) {
  CertificateFacts facts{.identity = absl::InvalidArgumentError("it has no spiffe:// URI"),
                         .is_authority = X509_check_ca(certificate) == 1,
                         .begins = TimeOf(X509_get0_notBefore(certificate)),
                         .ends = TimeOf(X509_get0_notAfter(certificate))};
  std::array<char, 256> issuer{};
  X509_NAME_get_text_by_NID(X509_get_issuer_name(certificate), NID_commonName, issuer.data(),
                            static_cast<int>(issuer.size()));
  facts.issuer = issuer.data();
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int digest_bytes = 0;
  X509_digest(certificate, EVP_sha256(), digest.data(), &digest_bytes);
  facts.sha256 = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest_bytes));
  const Names names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  ERR_clear_error();
  int uris = 0;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    auto text = [](const ASN1_STRING* string) {
      return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
                         static_cast<size_t>(ASN1_STRING_length(string)));
    };
    if (name->type == GEN_URI) {
      ++uris;
      facts.identity = ParseIdentityUri(text(name->d.uniformResourceIdentifier));
    } else if (name->type == GEN_DNS) {
      facts.hosts.push_back(text(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
      const std::string bytes = text(name->d.iPAddress);
      std::array<char, INET6_ADDRSTRLEN> address{};
      inet_ntop(bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6, bytes.data(), address.data(),
                address.size());
      facts.hosts.emplace_back(address.data());
    }
  }
  // X.509-SVID, section 2, requires exactly one.
  if (uris > 1) facts.identity = absl::InvalidArgumentError("it has more than one URI");
  return facts;
}

absl::StatusOr<CertificateFacts> ReadCertificate(absl::string_view pem) {
  ASSIGN_OR_RETURN(const Certificate certificate, ParseCertificate(pem));
  return FactsOf(certificate.get());
}

}  // namespace muster
