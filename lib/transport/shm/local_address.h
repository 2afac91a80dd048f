// Where a SharedMemoryTransport is found, by those who share its host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// The bytes, in an envelope (address_envelope.h) marked "MSM3": boot id (36 characters), the
// network namespace's device and inode (8 + 8), user id (4), nonce (16); numbers little-endian.
struct LocalAddress {
  std::string boot_id;          // of this boot of this kernel: a host's name that nobody chose
  uint64_t network_device = 0;  // abstract sockets are seen within a network namespace
  uint64_t network_inode = 0;
  uint32_t user = 0;
  std::array<std::byte, 16> nonce = {};  // random: names the socket; nobody guesses it

  // Of this thread, with a fresh nonce. UNAVAILABLE where /proc does not say.
  static absl::StatusOr<LocalAddress> Make();
  // INVALID_ARGUMENT for bytes that Encode() does not make.
  static absl::StatusOr<LocalAddress> Decode(absl::string_view bytes);

  std::string Encode() const;
  // The name of the abstract socket, without its leading zero byte.
  std::string SocketName() const;
  // Whether shared memory can connect the two: same host, network namespace and user.
  bool Reaches(const LocalAddress& other) const;
  // Why not, of two on one host: "another network namespace", "another user". "": it can, or they
  // are on two.
  absl::string_view ObstacleTo(const LocalAddress& other) const;
};

}  // namespace muster
