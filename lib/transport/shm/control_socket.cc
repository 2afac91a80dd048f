#include "lib/transport/shm/control_socket.h"

#include <glog/logging.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using Kind = ControlPacket::Kind;
using Refusal = ControlPacket::Refusal;

constexpr int kBacklog = 1024;

// The offset of each field; control_socket.h has the widths.
enum PacketOffset : size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kKindAt = 6,
  kRoleAt = 7,
  kPacketNumberAt = 8,  // slab, refusal, index
  kGenerationAt = 12,
  kBytesAt = 16,  // or job
  kTokenAt = 24,
};

template <typename T>
void Put(std::array<std::byte, ControlPacket::kBytes>& bytes, PacketOffset at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

template <typename T>
T Get(absl::Span<const std::byte> bytes, PacketOffset at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

absl::Status SocketError(const char* call) {
  const std::string what = absl::StrCat("control socket: ", call, ": ", std::strerror(errno));
  switch (errno) {
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:  // too many files are in transit to processes of this user
      return absl::ResourceExhaustedError(what);
    default:
      return absl::UnavailableError(what);
  }
}

absl::StatusOr<FileDescriptor> MakeSocket() {
  FileDescriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return SocketError("socket");
  return fd;
}

struct Address {
  sockaddr_un address;
  socklen_t bytes;
};

Address AbstractAddress(absl::string_view name) {
  Address made{};
  CHECK_LT(name.size(), sizeof(made.address.sun_path));
  made.address.sun_family = AF_UNIX;
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.bytes = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  return made;
}

// Room for `files` descriptors beside a packet.
template <int files>
union FileBuffer {
  char bytes[CMSG_SPACE(files * sizeof(int))];
  cmsghdr aligned;
};

// The kernel's limit for one message (SCM_MAX_FD). The buffer is never too small, so missing files
// (MSG_CTRUNC) mean that this process has no descriptor left.
constexpr int kFilesReceivedMax = 253;

struct ReceivedFiles {
  FileDescriptor first;
  int count = 0;  // the others are closed at once
};

ReceivedFiles FilesOf(msghdr& message) {
  ReceivedFiles files;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
      FileDescriptor file(fd);
      // Other files are closed when `file` goes out of scope, so that none leaks.
      if (files.count++ == 0) files.first = std::move(file);
    }
  }
  return files;
}

}  // namespace

std::array<std::byte, ControlPacket::kBytes> EncodePacket(const ControlPacket& packet) {
  std::array<std::byte, ControlPacket::kBytes> bytes{};
  Put(bytes, kMagicAt, ControlPacket::kMagic);
  Put(bytes, kVersionAt, ControlPacket::kVersion);
  Put(bytes, kKindAt, packet.kind);
  switch (packet.kind) {
    case Kind::kHello:
      Put(bytes, kBytesAt, packet.bytes);
      break;
    case Kind::kIntroduce: {
      Put(bytes, kRoleAt, packet.who.role);
      Put(bytes, kPacketNumberAt, packet.who.index);
      Put(bytes, kGenerationAt, packet.who.generation);
      Put(bytes, kBytesAt, packet.who.job);
      const std::string token = packet.token.ToBytes();
      std::memcpy(bytes.data() + kTokenAt, token.data(), SessionToken::kBytes);
      break;
    }
    case Kind::kRefused:
      Put(bytes, kPacketNumberAt, packet.refusal);
      break;
    case Kind::kSlab:
      Put(bytes, kPacketNumberAt, packet.slab);
      Put(bytes, kBytesAt, packet.bytes);
      break;
    case Kind::kWithdraw:
      Put(bytes, kPacketNumberAt, packet.slab);
      break;
    case Kind::kBell:
    case Kind::kBye:
      break;
  }
  return bytes;
}

absl::StatusOr<ControlPacket> DecodePacket(absl::Span<const std::byte> bytes) {
  if (bytes.size() != ControlPacket::kBytes) {
    return absl::InvalidArgumentError(absl::StrCat("control packet: ", bytes.size(),
                                                   " bytes instead of ", ControlPacket::kBytes));
  }
  const auto kind = Get<uint8_t>(bytes, kKindAt);
  if (kind < static_cast<uint8_t>(Kind::kHello) || kind > static_cast<uint8_t>(Kind::kBye)) {
    return absl::InvalidArgumentError(absl::StrCat("control packet: unknown kind ", kind));
  }
  ControlPacket packet{.kind = static_cast<Kind>(kind)};
  if (packet.kind == Kind::kIntroduce) {
    const auto role = Get<LinkRole>(bytes, kRoleAt);
    if (role != LinkRole::kWorker && role != LinkRole::kShard) {
      return absl::InvalidArgumentError(
          absl::StrCat("control packet: unknown role ", static_cast<int>(role)));
    }
    packet.who = {.job = Get<uint64_t>(bytes, kBytesAt),
                  .generation = Get<uint32_t>(bytes, kGenerationAt),
                  .role = role,
                  .index = Get<uint32_t>(bytes, kPacketNumberAt)};
    packet.token = *SessionToken::FromBytes(absl::string_view(
        reinterpret_cast<const char*>(bytes.data()) + kTokenAt, SessionToken::kBytes));
  } else if (packet.kind == Kind::kRefused) {
    const auto refusal = Get<uint32_t>(bytes, kPacketNumberAt);
    if (refusal != static_cast<uint32_t>(Refusal::kNotLetIn) &&
        refusal != static_cast<uint32_t>(Refusal::kFull)) {
      return absl::InvalidArgumentError(absl::StrCat("control packet: unknown refusal ", refusal));
    }
    packet.refusal = static_cast<Refusal>(refusal);
  } else {
    packet.slab = Get<uint32_t>(bytes, kPacketNumberAt);
    packet.bytes = Get<uint64_t>(bytes, kBytesAt);
  }
  // The remaining bytes are constants. Bytes that differ are no packet of this version.
  if (absl::MakeConstSpan(EncodePacket(packet)) != bytes) {
    return absl::InvalidArgumentError("control packet: wrong magic, version or reserved bytes");
  }
  return packet;
}

absl::StatusOr<ControlSocket> ControlSocket::Listen(absl::string_view name) {
  ASSIGN_OR_RETURN(FileDescriptor fd, MakeSocket());
  const Address address = AbstractAddress(name);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
    return SocketError("bind");
  }
  if (listen(fd.get(), kBacklog) != 0) return SocketError("listen");
  return ControlSocket(std::move(fd));
}

absl::StatusOr<ControlSocket> ControlSocket::Connect(absl::string_view name) {
  ASSIGN_OR_RETURN(FileDescriptor fd, MakeSocket());
  const Address address = AbstractAddress(name);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.address), address.bytes) != 0) {
    return SocketError("connect");
  }
  ControlSocket connected(std::move(fd));
  RETURN_IF_ERROR(connected.CheckPeer());
  return connected;
}

absl::StatusOr<std::optional<ControlSocket>> ControlSocket::Accept() {
  FileDescriptor fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd) {
    if (errno == EAGAIN) return std::nullopt;
    return SocketError("accept");
  }
  ControlSocket accepted(std::move(fd));
  RETURN_IF_ERROR(accepted.CheckPeer());
  return accepted;
}

absl::Status ControlSocket::CheckPeer() const {
  ucred peer;
  socklen_t bytes = sizeof(peer);
  if (getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return SocketError("SO_PEERCRED");
  }
  if (peer.uid == geteuid() || peer.uid == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("process ", peer.pid, " of user ", peer.uid,
                                                  " may not share memory with user ", geteuid(),
                                                  ": run both as one user"));
}

absl::Status ControlSocket::Send(const ControlPacket& packet, int file) {
  std::array<std::byte, ControlPacket::kBytes> bytes = EncodePacket(packet);
  iovec data{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  FileBuffer<1> buffer{};
  if (file >= 0) {
    message.msg_control = buffer.bytes;
    message.msg_controllen = sizeof(buffer.bytes);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  }
  if (sendmsg(fd(), &message, MSG_NOSIGNAL) >= 0) return absl::OkStatus();
  // The kernel lacks memory or file slots while the socket may be writable all the time. So the
  // caller must not wait until it is writable, and gets another code.
  const bool full = errno == EAGAIN;
  absl::Status why = SocketError("sendmsg");
  if (full || !absl::IsResourceExhausted(why)) return why;
  return absl::AbortedError(why.message());
}

absl::StatusOr<std::optional<ControlSocket::Received>> ControlSocket::Receive() {
  // One byte more, to detect a packet that is too long.
  std::array<std::byte, ControlPacket::kBytes + 1> bytes;
  iovec data{.iov_base = bytes.data(), .iov_len = bytes.size()};
  FileBuffer<kFilesReceivedMax> buffer;
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = buffer.bytes;
  message.msg_controllen = sizeof(buffer.bytes);
  ssize_t size = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
  // ECONNRESET means that the other side closed before it had read everything. The kernel reports
  // it before the packets that the other side sent, so read again.
  if (size < 0 && errno == ECONNRESET) size = recvmsg(fd(), &message, MSG_CMSG_CLOEXEC);
  if (size < 0 && errno == EAGAIN) return std::nullopt;
  if (size < 0)
    return absl::UnavailableError(absl::StrCat("the peer's socket: ", std::strerror(errno)));
  ReceivedFiles files = FilesOf(message);
  if (size == 0) return absl::UnavailableError("the peer's process closed the connection or ended");
  if (files.count > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("control packet: ", files.count, " files instead of at most one"));
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return absl::ResourceExhaustedError(
        "control socket: this process has no file descriptor left for the file that the peer sent: "
        "raise its limit (ulimit -n)");
  }
  ASSIGN_OR_RETURN(ControlPacket packet,
                   DecodePacket(absl::MakeConstSpan(bytes).first(static_cast<size_t>(size))));
  return Received{packet, std::move(files.first)};
}

}  // namespace muster
