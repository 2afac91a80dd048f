#include "lib/transport/tcp/gcm_provider.h"

#include <dlfcn.h>
#include <glog/logging.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/provider.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/types/span.h"

namespace muster {
namespace {

constexpr size_t kKeyBytes = 16, kIvBytes = 12, kTagBytes = 16;

// Mirrors the declarations of intel-ipsec-mb.h, with larger memory. Valid only for this version of
// the library, so no other version is called.
constexpr unsigned kVersion = 0x10300;
struct alignas(64) ExpandedKey {  // gcm_key_data: 15 round keys, and powers of the hash key
  std::array<std::byte, 4096> bytes;
};
struct alignas(64) Progress {  // gcm_context_data
  std::array<std::byte, 256> bytes;
};
struct Library {
  unsigned (*version)();
  void (*expand)(const void* key, ExpandedKey*);
  void (*begin)(const ExpandedKey*, Progress*, const uint8_t* iv, const uint8_t* aad, uint64_t);
  using Update = void (*)(const ExpandedKey*, Progress*, uint8_t* out, const uint8_t* in, uint64_t);
  Update encrypt, decrypt;
  using Finish = void (*)(const ExpandedKey*, Progress*, uint8_t* tag, uint64_t);
  Finish finish_encryption, finish_decryption;
};
Library library;

bool HasWideAes() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & bit_VAES) != 0 &&
         (c & bit_VPCLMULQDQ) != 0 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

// Returns the reason why the library cannot be used; null if `library` may be called.
const char* LoadLibrary() {
  if (!HasWideAes()) return "the processor has no VAES and AVX-512";
  void* const handle = dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return "there is no libIPSec_MB.so.1";
  const auto find = [handle](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    return function != nullptr;
  };
  const bool found = find(library.version, "imb_get_version") && library.version() == kVersion &&
                     find(library.expand, "aes_gcm_pre_128_vaes_avx512") &&
                     find(library.begin, "aes_gcm_init_128_vaes_avx512") &&
                     find(library.encrypt, "aes_gcm_enc_128_update_vaes_avx512") &&
                     find(library.decrypt, "aes_gcm_dec_128_update_vaes_avx512") &&
                     find(library.finish_encryption, "aes_gcm_enc_128_finalize_vaes_avx512") &&
                     find(library.finish_decryption, "aes_gcm_dec_128_finalize_vaes_avx512");
  return found ? nullptr : "libIPSec_MB.so.1 is not version 1.3";
}

// Implements provider-cipher(7): functions return 0 if OpenSSL must fail. Only the sizes that TLS
// uses are accepted.
struct Cipher {
  enum class State { kNoIv, kIv, kAad, kText };

  ExpandedKey key;
  Progress progress;
  std::array<uint8_t, kIvBytes> iv;
  std::array<uint8_t, kTagBytes> tag;
  bool encrypts = false, has_key = false, has_tag = false;
  State state = State::kNoIv;
};

void* NewCipher(void*) { return new Cipher; }

void FreeCipher(void* cipher) {
  OPENSSL_cleanse(cipher, sizeof(Cipher));
  delete static_cast<Cipher*>(cipher);
}

int SetParams(void* self, const OSSL_PARAM* params) {
  auto& cipher = *static_cast<Cipher*>(self);
  if (params == nullptr) return 1;
  size_t size = 0;
  const OSSL_PARAM* param = OSSL_PARAM_locate_const(params, OSSL_CIPHER_PARAM_AEAD_IVLEN);
  if (param != nullptr && (OSSL_PARAM_get_size_t(param, &size) != 1 || size != kIvBytes)) return 0;
  param = OSSL_PARAM_locate_const(params, OSSL_CIPHER_PARAM_AEAD_TAG);
  if (param == nullptr) return 1;
  void* tag = cipher.tag.data();
  if (cipher.encrypts || OSSL_PARAM_get_octet_string(param, &tag, kTagBytes, &size) != 1) return 0;
  cipher.has_tag = size == kTagBytes;
  return cipher.has_tag;
}

int GetParams(void* self, OSSL_PARAM* params) {
  const auto& cipher = *static_cast<Cipher*>(self);
  const auto tell = [params](const char* name, size_t value) {
    OSSL_PARAM* param = OSSL_PARAM_locate(params, name);
    return param == nullptr || OSSL_PARAM_set_size_t(param, value) == 1;
  };
  if (!tell(OSSL_CIPHER_PARAM_KEYLEN, kKeyBytes) || !tell(OSSL_CIPHER_PARAM_IVLEN, kIvBytes) ||
      !tell(OSSL_CIPHER_PARAM_AEAD_TAGLEN, kTagBytes)) {
    return 0;
  }
  OSSL_PARAM* tag = OSSL_PARAM_locate(params, OSSL_CIPHER_PARAM_AEAD_TAG);
  if (tag == nullptr) return 1;
  return cipher.encrypts && cipher.has_tag &&
         OSSL_PARAM_set_octet_string(tag, cipher.tag.data(), kTagBytes) == 1;
}

int Start(Cipher& cipher, absl::Span<const uint8_t> key, absl::Span<const uint8_t> iv,
          const OSSL_PARAM* params) {
  if (key.data() != nullptr) {
    if (key.size() != kKeyBytes) return 0;
    library.expand(key.data(), &cipher.key);
    cipher.has_key = true;
  }
  if (iv.data() != nullptr) {
    if (iv.size() != kIvBytes) return 0;
    std::memcpy(cipher.iv.data(), iv.data(), kIvBytes);
    cipher.state = Cipher::State::kIv;
    cipher.has_tag = false;
  }
  return SetParams(&cipher, params);
}

template <bool kEncrypts>
int StartTo(void* self, const unsigned char* key, size_t key_bytes, const unsigned char* iv,
            size_t iv_bytes, const OSSL_PARAM* params) {
  auto& cipher = *static_cast<Cipher*>(self);
  cipher.encrypts = kEncrypts;
  return Start(cipher, {key, key_bytes}, {iv, iv_bytes}, params);
}

// Handles text, or additional data if `out` is null. Additional data comes in one call, before the
// text.
int Update(void* self, unsigned char* out, size_t* written, size_t room, const unsigned char* in,
           size_t size) {
  auto& cipher = *static_cast<Cipher*>(self);
  if (!cipher.has_key || cipher.state == Cipher::State::kNoIv) return 0;
  if (cipher.state == Cipher::State::kIv) {
    const bool is_aad = out == nullptr;
    library.begin(&cipher.key, &cipher.progress, cipher.iv.data(), in, is_aad ? size : 0);
    cipher.state = is_aad ? Cipher::State::kAad : Cipher::State::kText;
    *written = size;
    if (is_aad) return 1;
  }
  if (out == nullptr || room < size) return 0;
  cipher.state = Cipher::State::kText;
  const auto update = cipher.encrypts ? library.encrypt : library.decrypt;
  update(&cipher.key, &cipher.progress, out, in, size);
  *written = size;
  return 1;
}

// Finish() drops the IV, so that none is used twice.
int Finish(void* self, unsigned char*, size_t* written, size_t) {
  auto& cipher = *static_cast<Cipher*>(self);
  if (cipher.state < Cipher::State::kAad || (!cipher.encrypts && !cipher.has_tag)) return 0;
  cipher.state = Cipher::State::kNoIv;
  *written = 0;
  if (cipher.encrypts) {
    library.finish_encryption(&cipher.key, &cipher.progress, cipher.tag.data(), kTagBytes);
    cipher.has_tag = true;
    return 1;
  }
  std::array<uint8_t, kTagBytes> tag;
  library.finish_decryption(&cipher.key, &cipher.progress, tag.data(), kTagBytes);
  return CRYPTO_memcmp(tag.data(), cipher.tag.data(), kTagBytes) == 0;
}

int DescribeCipher(OSSL_PARAM* params) {
  const auto tell = [params](const char* name, auto set, auto value) {
    OSSL_PARAM* param = OSSL_PARAM_locate(params, name);
    return param == nullptr || set(param, value) == 1;
  };
  return tell(OSSL_CIPHER_PARAM_MODE, OSSL_PARAM_set_uint, EVP_CIPH_GCM_MODE) &&
         tell(OSSL_CIPHER_PARAM_KEYLEN, OSSL_PARAM_set_size_t, kKeyBytes) &&
         tell(OSSL_CIPHER_PARAM_IVLEN, OSSL_PARAM_set_size_t, kIvBytes) &&
         tell(OSSL_CIPHER_PARAM_BLOCK_SIZE, OSSL_PARAM_set_size_t, 1) &&
         tell(OSSL_CIPHER_PARAM_AEAD, OSSL_PARAM_set_int, 1) &&
         tell(OSSL_CIPHER_PARAM_CUSTOM_IV, OSSL_PARAM_set_int, 1);
}

const OSSL_PARAM* SettableParams(void*, void*) {
  static const OSSL_PARAM params[] = {
      OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_IVLEN, nullptr),
      OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, nullptr, 0), OSSL_PARAM_END};
  return params;
}

const OSSL_PARAM* GettableParams(void*, void*) {
  static const OSSL_PARAM params[] = {
      OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_KEYLEN, nullptr),
      OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_IVLEN, nullptr),
      OSSL_PARAM_size_t(OSSL_CIPHER_PARAM_AEAD_TAGLEN, nullptr),
      OSSL_PARAM_octet_string(OSSL_CIPHER_PARAM_AEAD_TAG, nullptr, 0), OSSL_PARAM_END};
  return params;
}

template <typename Function>
OSSL_DISPATCH Entry(int id, Function* function) {
  return {id, reinterpret_cast<void (*)()>(function)};
}

const OSSL_ALGORITHM* Query(void*, int operation, int* no_cache) {
  static const OSSL_DISPATCH functions[] = {
      Entry(OSSL_FUNC_CIPHER_NEWCTX, NewCipher),
      Entry(OSSL_FUNC_CIPHER_FREECTX, FreeCipher),
      Entry(OSSL_FUNC_CIPHER_ENCRYPT_INIT, StartTo<true>),
      Entry(OSSL_FUNC_CIPHER_DECRYPT_INIT, StartTo<false>),
      Entry(OSSL_FUNC_CIPHER_UPDATE, Update),
      Entry(OSSL_FUNC_CIPHER_FINAL, Finish),
      Entry(OSSL_FUNC_CIPHER_GET_PARAMS, DescribeCipher),
      Entry(OSSL_FUNC_CIPHER_GET_CTX_PARAMS, GetParams),
      Entry(OSSL_FUNC_CIPHER_SET_CTX_PARAMS, SetParams),
      Entry(OSSL_FUNC_CIPHER_GETTABLE_CTX_PARAMS, GettableParams),
      Entry(OSSL_FUNC_CIPHER_SETTABLE_CTX_PARAMS, SettableParams),
      {0, nullptr}};
  static const OSSL_ALGORITHM ciphers[] = {
      {"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", "provider=muster_gcm", functions,
       "libIPSec_MB's, with VAES"},
      {nullptr, nullptr, nullptr, nullptr}};
  *no_cache = 0;
  return operation == OSSL_OP_CIPHER ? ciphers : nullptr;
}

int MakeProvider(const OSSL_CORE_HANDLE* handle, const OSSL_DISPATCH*, const OSSL_DISPATCH** out,
                 void** provider) {
  static const OSSL_DISPATCH functions[] = {Entry(OSSL_FUNC_PROVIDER_QUERY_OPERATION, Query),
                                            {0, nullptr}};
  *out = functions;
  *provider = const_cast<OSSL_CORE_HANDLE*>(handle);
  return 1;
}

OSSL_LIB_CTX* MakeContext() {
  if (OPENSSL_version_major() != 3 || OPENSSL_version_minor() != 0) return nullptr;
  if (const char* why = LoadLibrary(); why != nullptr) {
    LOG(INFO) << "AES-GCM at the speed of OpenSSL 3.0: " << why;
    return nullptr;
  }
  OSSL_LIB_CTX* context = OSSL_LIB_CTX_new();
  CHECK(context != nullptr);
  CHECK_EQ(OSSL_PROVIDER_add_builtin(context, "muster_gcm", MakeProvider), 1);
  CHECK(OSSL_PROVIDER_load(context, "default") != nullptr);
  CHECK(OSSL_PROVIDER_load(context, "muster_gcm") != nullptr);
  LOG(INFO) << "AES-GCM by libIPSec_MB";
  return context;
}

}  // namespace

OSSL_LIB_CTX* FastGcmContext() {
  static OSSL_LIB_CTX* const context = MakeContext();
  return context;
}

}  // namespace muster
