// The Unix sockets beside shared-memory links, by which processes of one host introduce themselves.
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
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session.h"

namespace muster {

// A packet on a control socket: kBytes bytes with at most one file.
struct ControlPacket {
  enum class Kind : uint8_t {
    kHello = 1,      // `file` is the sender's ring, of `bytes` bytes
    kIntroduce = 2,  // connector, after its HELLO: it is `who` and knows `token`
    kBell = 3,       // `file` is the sender's Doorbell, to ring when the sender sleeps
    kRefused = 4,    // the last packet that a refused connector gets: `refusal`
    kSlab = 5,       // `file` is the slab `slab`, of `bytes` bytes
    kWithdraw = 6,   // no descriptor will name `slab` again
    kBye = 7,        // the sender has left the link and publishes nothing more
  };
  enum class Refusal : uint32_t {
    kNone = 0,
    kNotLetIn = 1,  // no such session is open here, or its token differs
    kFull = 2,      // the limit of links is reached, or this process has no resources left
  };
  static constexpr uint32_t kMagic = 0x4b4c534d;  // "MSLK"
  static constexpr uint16_t kVersion = 3;
  static constexpr size_t kBytes = 40;

  Kind kind = Kind::kHello;
  uint32_t slab = 0;
  uint64_t bytes = 0;
  Refusal refusal = Refusal::kNone;
  LinkIdentity who;
  SessionToken token;

  friend bool operator==(const ControlPacket&, const ControlPacket&) = default;
};

// Byte layout (offset, width), in the host's byte order. Fields that a kind does not use are zero:
//   magic 0,4  version 4,2  kind 6,1  role 7,1  slab, refusal or index 8,4  generation 12,4
//   bytes or job 16,8  token 24,16
std::array<std::byte, ControlPacket::kBytes> EncodePacket(const ControlPacket& packet);
// Returns INVALID_ARGUMENT for bytes that EncodePacket does not make.
absl::StatusOr<ControlPacket> DecodePacket(absl::Span<const std::byte> bytes);

// One end of a connection, or a listener. No call blocks. Thread-compatible.
class ControlSocket {
 public:
  // Listens on `name`, an abstract socket address without the leading zero byte.
  static absl::StatusOr<ControlSocket> Listen(absl::string_view name);
  // Connects to `name`. Returns:
  // - UNAVAILABLE if no process listens there;
  // - RESOURCE_EXHAUSTED if too many connections wait there, or this process has no descriptor or
  //   memory left: try again;
  // - PERMISSION_DENIED if the listener belongs to neither this process's user nor root.
  static absl::StatusOr<ControlSocket> Connect(absl::string_view name);

  // Accepts a connection on a listener. Returns an empty value if none waits. Errors:
  // - PERMISSION_DENIED: a process connected and was refused, because it belongs to neither this
  //   process's user nor root;
  // - RESOURCE_EXHAUSTED: there is no file descriptor or memory left;
  // - others: the waiting connection may be gone, and another may wait.
  absl::StatusOr<std::optional<ControlSocket>> Accept();

  // Sends `packet` with `file`, or without a file if it is -1. Returns:
  // - RESOURCE_EXHAUSTED if the other side does not read: try again when the socket is writable.
  // - ABORTED if the kernel has no memory, or too many files of this user are in transit: try again
  //   later, nothing reports when;
  // - UNAVAILABLE if the other side is gone.
  absl::Status Send(const ControlPacket& packet, int file = -1);

  struct Received {
    ControlPacket packet;
    FileDescriptor file;
  };
  // Returns the next packet, or an empty value if there is none. Errors:
  // - UNAVAILABLE: the other side is gone, and all its packets were read.
  // - INVALID_ARGUMENT: the bytes are no packet, or have more than one file.
  // - RESOURCE_EXHAUSTED: this process could not take the packet's file; packet and file are lost.
  absl::StatusOr<std::optional<Received>> Receive();

  int fd() const { return socket_.get(); }

 private:
  explicit ControlSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  absl::Status CheckPeer() const;

  FileDescriptor socket_;
};

}  // namespace muster
