// The Unix sockets beside shared-memory links: they introduce processes of one host to each other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/transport/file_descriptor.h"

namespace muster {

// What is said on a control socket, each in a packet of kBytes bytes with at most one file.
struct ControlPacket {
  enum class Kind : uint8_t {
    kHello = 1,     // connector: `file` is the link's memory, of `bytes` bytes; `nonce` is its own
    kSlab = 2,      // connector: `file` is the slab `slab`, of `bytes` bytes
    kWithdraw = 3,  // connector: no descriptor will name `slab` any more
    kBell = 4,      // either side, once: `file` is its Doorbell, to be rung when it sleeps
  };
  static constexpr uint32_t kMagic = 0x4b4c534d;  // "MSLK"
  static constexpr uint16_t kVersion = 2;
  static constexpr size_t kBytes = 40;
  using Nonce = std::array<std::byte, 16>;

  Kind kind = Kind::kHello;
  uint32_t slab = 0;
  uint64_t bytes = 0;
  Nonce nonce = {};

  friend bool operator==(const ControlPacket&, const ControlPacket&) = default;
};

// Byte layout (offset, width), in the host's order: magic 0,4  version 4,2  kind 6,1  zero 7,1
// slab 8,4  zero 12,4  bytes 16,8  nonce 24,16
std::array<std::byte, ControlPacket::kBytes> EncodePacket(const ControlPacket& packet);
// INVALID_ARGUMENT for bytes that EncodePacket does not make.
absl::StatusOr<ControlPacket> DecodePacket(absl::Span<const std::byte> bytes);

// One end of a connection, or a listener. Nothing here blocks. Thread-compatible.
class ControlSocket {
 public:
  // `name` is an abstract socket address without the leading zero byte.
  static absl::StatusOr<ControlSocket> Listen(absl::string_view name);
  // UNAVAILABLE: nobody listens there; RESOURCE_EXHAUSTED: too many are waiting there, try again;
  // PERMISSION_DENIED: it is another user's.
  static absl::StatusOr<ControlSocket> Connect(absl::string_view name);

  // Of a listener. Empty: nobody is waiting. PERMISSION_DENIED: somebody of another user was, and
  // was turned away. RESOURCE_EXHAUSTED: no file descriptors are left.
  absl::StatusOr<std::optional<ControlSocket>> Accept();

  // `file` -1: none. RESOURCE_EXHAUSTED: the other side does not read, try again when the socket is
  // writable; UNAVAILABLE: the other side is gone.
  absl::Status Send(const ControlPacket& packet, int file = -1);

  struct Received {
    ControlPacket packet;
    FileDescriptor file;
  };
  // Empty: nothing has come. UNAVAILABLE: the other side is gone, and nothing is left that it said;
  // INVALID_ARGUMENT: what it said is no packet.
  absl::StatusOr<std::optional<Received>> Receive();

  int fd() const { return socket_.get(); }

 private:
  explicit ControlSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  absl::Status CheckPeer() const;

  FileDescriptor socket_;
};

}  // namespace muster
