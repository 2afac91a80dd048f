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
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session.h"

namespace muster {

// What is said on a control socket, each in a packet of kBytes bytes with at most one file.
struct ControlPacket {
  enum class Kind : uint8_t {
    kHello = 1,      // `file` is the speaker's ring, of `bytes` bytes
    kIntroduce = 2,  // connector, after its HELLO: it is `who`, and knows `token`
    kBell = 3,       // `file` is the speaker's Doorbell, to be rung when it sleeps
    kRefused = 4,    // the last that a connector hears: `refusal`
    kSlab = 5,       // `file` is the slab `slab`, of `bytes` bytes
    kWithdraw = 6,   // no descriptor will name `slab` any more
    kBye = 7,        // the speaker has left the link: nothing more will be published
  };
  enum class Refusal : uint32_t {
    kNone = 0,
    kNotLetIn = 1,  // no such session is open here, or the token is another
    kFull = 2,      // there are as many links as are allowed, or as this process can have
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

// Byte layout (offset, width), in the host's order; what a kind does not have is zero: magic 0,4
// version 4,2  kind 6,1  role 7,1  slab, refusal or index 8,4  generation 12,4  bytes or job 16,8
// token 24,16
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
  // was turned away. RESOURCE_EXHAUSTED: no file descriptors are left. Others: who was waiting is
  // gone, perhaps; somebody else may wait.
  absl::StatusOr<std::optional<ControlSocket>> Accept();

  // `file` -1: none. RESOURCE_EXHAUSTED: the other side does not read, try again when the socket is
  // writable; ABORTED: the kernel has no memory, or too many files of this user are on their way:
  // try again some time, nothing tells when; UNAVAILABLE: the other side is gone.
  absl::Status Send(const ControlPacket& packet, int file = -1);

  struct Received {
    ControlPacket packet;
    FileDescriptor file;
  };
  // Empty: nothing has come. UNAVAILABLE: the other side is gone, and nothing is left that it said;
  // INVALID_ARGUMENT: what it said is no packet, or has more than one file; RESOURCE_EXHAUSTED:
  // this process could not take the packet's file, and packet and file are lost.
  absl::StatusOr<std::optional<Received>> Receive();

  int fd() const { return socket_.get(); }

 private:
  explicit ControlSocket(FileDescriptor socket) : socket_(std::move(socket)) {}

  absl::Status CheckPeer() const;

  FileDescriptor socket_;
};

}  // namespace muster
