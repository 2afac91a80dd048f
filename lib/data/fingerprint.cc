#include "lib/data/fingerprint.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/security/sha256.h"

namespace muster {

std::string FingerprintOf(const std::vector<std::string>& facts) {
  constexpr size_t kDigits = 32;
  Sha256 hash;
  for (const std::string& fact : facts) {
    hash.Add(absl::StrCat(fact.size(), ":"));  // so that no two lists have the same bytes
    hash.Add(fact);
  }
  return absl::BytesToHexString(hash.Finish()).substr(0, kDigits);
}

}  // namespace muster
