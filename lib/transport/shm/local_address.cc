#include "lib/transport/shm/local_address.h"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "lib/transport/core/address_envelope.h"

namespace muster {
namespace {

constexpr absl::string_view kMark = "MSM3";
constexpr size_t kBootIdBytes = 36;
constexpr size_t kAddressBytes = kBootIdBytes + 8 + 8 + 4 + 16;

template <typename T>
void Append(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

template <typename T>
T TakeNumber(absl::string_view& bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  bytes.remove_prefix(sizeof(T));
  return value;
}

}  // namespace

absl::StatusOr<LocalAddress> LocalAddress::Make() {
  LocalAddress made;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!(file >> made.boot_id) || made.boot_id.size() != kBootIdBytes) {
    return absl::UnavailableError(
        "shared memory: /proc/sys/kernel/random/boot_id does not name this host");
  }
  struct stat network;
  if (stat("/proc/thread-self/ns/net", &network) != 0) {
    return absl::UnavailableError(
        absl::StrCat("shared memory: /proc/thread-self/ns/net: ", std::strerror(errno)));
  }
  made.network_device = network.st_dev;
  made.network_inode = network.st_ino;
  made.user = geteuid();
  if (getrandom(made.nonce.data(), made.nonce.size(), 0) != made.nonce.size()) {
    return absl::UnavailableError(absl::StrCat("shared memory: getrandom: ", std::strerror(errno)));
  }
  return made;
}

std::string LocalAddress::Encode() const {
  std::string bytes = boot_id;
  Append(bytes, network_device);
  Append(bytes, network_inode);
  Append(bytes, user);
  bytes.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  return SealAddress(kMark, bytes);
}

absl::StatusOr<LocalAddress> LocalAddress::Decode(absl::string_view sealed) {
  constexpr absl::string_view kWhat = "shared-memory address";
  ASSIGN_OR_RETURN(absl::string_view bytes, OpenAddress(kMark, sealed, kWhat));
  if (bytes.size() != kAddressBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", kWhat, " of ", bytes.size(), " bytes instead of ", kAddressBytes));
  }
  LocalAddress address;
  address.boot_id = std::string(bytes.substr(0, kBootIdBytes));
  bytes.remove_prefix(kBootIdBytes);
  address.network_device = TakeNumber<uint64_t>(bytes);
  address.network_inode = TakeNumber<uint64_t>(bytes);
  address.user = TakeNumber<uint32_t>(bytes);
  std::memcpy(address.nonce.data(), bytes.data(), address.nonce.size());
  return address;
}

std::string LocalAddress::SocketName() const {
  return absl::StrCat("muster-", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(nonce.data()), nonce.size())));
}

bool LocalAddress::Reaches(const LocalAddress& other) const {
  return boot_id == other.boot_id && ObstacleTo(other).empty();
}

absl::string_view LocalAddress::ObstacleTo(const LocalAddress& other) const {
  if (boot_id != other.boot_id) return "";
  if (network_device != other.network_device || network_inode != other.network_inode) {
    return "another network namespace";
  }
  return user != other.user ? "another user" : "";
}

}  // namespace muster
