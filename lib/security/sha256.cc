#include "lib/security/sha256.h"

#include <glog/logging.h>
#include <openssl/evp.h>

namespace muster {

void Sha256::Free::operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK_EQ(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr), 1);
}

void Sha256::Add(absl::string_view bytes) {
  CHECK_EQ(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()), 1);
}

std::string Sha256::Finish() {
  std::string digest(32, '\0');
  CHECK_EQ(
      EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr),
      1);
  return digest;
}

}  // namespace muster
