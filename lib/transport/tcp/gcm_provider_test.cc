#include "lib/transport/tcp/gcm_provider.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace muster::gcm_provider_test {
namespace {

using Bytes = std::vector<uint8_t>;

struct Deleter {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

// One key of one implementation, used as TLS does: the key first, then an IV for each text.
class Gcm {
 public:
  enum class Direction { kDecrypt, kEncrypt };

  Gcm(OSSL_LIB_CTX* library, const Bytes& key, Direction direction)
      : cipher_(EVP_CIPHER_fetch(library, "AES-128-GCM", kFastGcmProperties)),
        context_(EVP_CIPHER_CTX_new()) {
    const int encrypts = direction == Direction::kEncrypt;
    EXPECT_EQ(EVP_CipherInit_ex(context_.get(), cipher_.get(), nullptr, nullptr, nullptr, encrypts),
              1);
    EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_IVLEN, 12, nullptr), 1);
    EXPECT_EQ(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, key.data(), nullptr, -1), 1);
  }

  // Returns the ciphertext and its tag.
  Bytes Encrypt(Bytes iv, const Bytes& aad, const Bytes& text) {
    Bytes sealed = text;
    EXPECT_EQ(Run(iv, aad, absl::MakeSpan(sealed)), 1);
    sealed.resize(text.size() + 16);
    EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, 16, &sealed[text.size()]),
              1);
    return sealed;
  }
  std::optional<Bytes> Decrypt(Bytes iv, const Bytes& aad, Bytes sealed) {
    tag_.emplace();
    std::copy(sealed.end() - 16, sealed.end(), tag_->begin());
    sealed.resize(sealed.size() - 16);
    if (Run(iv, aad, absl::MakeSpan(sealed)) != 1) return std::nullopt;
    return sealed;
  }

 private:
  // Encrypts or decrypts `text` in place, in two parts if it is long enough.
  int Run(const Bytes& iv, const Bytes& aad, absl::Span<uint8_t> text) {
    EVP_CIPHER_CTX* context = context_.get();
    int size = 0;
    EXPECT_EQ(EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, iv.data(), -1), 1);
    if (tag_) {
      EXPECT_EQ(EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, 16, tag_->data()), 1);
    }
    EXPECT_EQ(EVP_CipherUpdate(context, nullptr, &size, aad.data(), aad.size()), 1);
    const auto first = text.first(text.size() > 100 ? 77 : text.size());
    for (const auto part : {first, text.subspan(first.size())}) {
      if (part.empty()) continue;
      EXPECT_EQ(EVP_CipherUpdate(context, part.data(), &size, part.data(), part.size()), 1);
      EXPECT_EQ(size, part.size());
    }
    std::array<uint8_t, 16> none;
    return EVP_CipherFinal_ex(context, none.data(), &size);
  }

  const std::unique_ptr<EVP_CIPHER, Deleter> cipher_;
  const std::unique_ptr<EVP_CIPHER_CTX, Deleter> context_;
  std::optional<std::array<uint8_t, 16>> tag_;
};

class GcmProviderTest : public testing::Test {
 protected:
  void SetUp() override {
    if (FastGcmContext() == nullptr) GTEST_SKIP() << "the log says what is missing";
  }

  Bytes RandomBytes(size_t size) {
    Bytes bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    return bytes;
  }

  std::mt19937 random_{1};
};

TEST_F(GcmProviderTest, SealsAndOpensLikeOpenSsl) {
  const Bytes key = RandomBytes(16);
  Gcm fast_out(FastGcmContext(), key, Gcm::Direction::kEncrypt);
  Gcm fast_in(FastGcmContext(), key, Gcm::Direction::kDecrypt);
  Gcm own_out(nullptr, key, Gcm::Direction::kEncrypt);
  for (const size_t size : {1, 5, 15, 16, 17, 63, 64, 65, 255, 256, 1000, 4095, 16'384, 16'385}) {
    const Bytes iv = RandomBytes(12), aad = RandomBytes(5), text = RandomBytes(size);
    const Bytes sealed = own_out.Encrypt(iv, aad, text);
    EXPECT_EQ(fast_out.Encrypt(iv, aad, text), sealed) << size << " bytes";
    EXPECT_EQ(fast_in.Decrypt(iv, aad, sealed), text) << size << " bytes";
  }
}

TEST_F(GcmProviderTest, OpensNothingThatWasChanged) {
  const Bytes key = RandomBytes(16), iv = RandomBytes(12), aad = RandomBytes(5);
  Gcm out(FastGcmContext(), key, Gcm::Direction::kEncrypt);
  Gcm in(FastGcmContext(), key, Gcm::Direction::kDecrypt);
  const Bytes sealed = out.Encrypt(iv, aad, RandomBytes(100));
  for (size_t i = 0; i < sealed.size(); ++i) {
    Bytes changed = sealed;
    changed[i] ^= 1;
    EXPECT_EQ(in.Decrypt(iv, aad, changed), std::nullopt) << "byte " << i;
  }
  Bytes other_aad = aad;
  other_aad[4] ^= 1;
  EXPECT_EQ(in.Decrypt(iv, other_aad, sealed), std::nullopt);
  EXPECT_NE(in.Decrypt(iv, aad, sealed), std::nullopt);
}

TEST_F(GcmProviderTest, AnIvIsUsedOnlyOnce) {
  EVP_CIPHER* cipher = EVP_CIPHER_fetch(FastGcmContext(), "AES-128-GCM", kFastGcmProperties);
  EVP_CIPHER_CTX* context = EVP_CIPHER_CTX_new();
  const Bytes key = RandomBytes(16), iv = RandomBytes(12);
  Bytes text = RandomBytes(10);
  int size = 0;
  ASSERT_EQ(EVP_EncryptInit_ex(context, cipher, nullptr, key.data(), iv.data()), 1);
  EXPECT_EQ(EVP_EncryptUpdate(context, text.data(), &size, text.data(), 10), 1);
  EXPECT_EQ(EVP_EncryptFinal_ex(context, text.data(), &size), 1);
  EXPECT_EQ(EVP_EncryptUpdate(context, text.data(), &size, text.data(), 10), 0);
  EVP_CIPHER_CTX_free(context);
  EVP_CIPHER_free(cipher);
}

}  // namespace
}  // namespace muster::gcm_provider_test
