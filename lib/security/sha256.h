// Incremental SHA-256.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

typedef struct evp_md_ctx_st EVP_MD_CTX;

namespace muster {

// Movable; not thread-safe.
class Sha256 {
 public:
  Sha256();

  void Add(absl::string_view bytes);
  // Returns the 32 bytes. No other method may be called afterwards.
  std::string Finish();

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const;
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace muster
