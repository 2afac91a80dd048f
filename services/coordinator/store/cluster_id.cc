#include "services/coordinator/store/cluster_id.h"

#include <glog/logging.h>
#include <sys/random.h>
#include <sys/types.h>

#include <array>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster {

std::string NewClusterId() {
  std::array<unsigned char, 16> bytes;
  CHECK_EQ(getrandom(bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const std::string hex = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const absl::string_view id = hex;
  return absl::StrCat(id.substr(0, 8), "-", id.substr(8, 4), "-", id.substr(12, 4), "-",
                      id.substr(16, 4), "-", id.substr(20));
}

}  // namespace muster
