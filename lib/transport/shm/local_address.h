// The address of a SharedMemoryTransport, for processes on the same host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

// Encoded in an envelope (address_envelope.h) with the mark "MSM3": boot id (36 characters), device
// and inode of the network namespace (8 + 8), user id (4), nonce (16). Numbers are little-endian.
struct LocalAddress {
  std::string boot_id;  // of this boot of this kernel: identifies the host without configuration
  uint64_t network_device = 0;  // abstract sockets are visible only within a network namespace
  uint64_t network_inode = 0;
  uint32_t user = 0;
  // Random: names the socket, so that no process can guess it.
  std::array<std::byte, 16> nonce = {};

  // Makes the address of this thread, with a new nonce. Returns UNAVAILABLE if /proc does not have
  // the values.
  static absl::StatusOr<LocalAddress> Make();
  // Returns INVALID_ARGUMENT for bytes that Encode() does not make.
  static absl::StatusOr<LocalAddress> Decode(absl::string_view bytes);

  std::string Encode() const;
  // The name of the abstract socket, without its leading zero byte.
  std::string SocketName() const;
  // Whether shared memory can connect the two: same host, network namespace and user.
  bool Reaches(const LocalAddress& other) const;
  // The reason why two addresses on one host cannot be connected: "another network namespace" or
  // "another user". Returns "" if they can be, or if they are on different hosts.
  absl::string_view ObstacleTo(const LocalAddress& other) const;
};

}  // namespace muster
