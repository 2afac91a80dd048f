// Preloaded into a process. Records the bytes of connections that it accepts with accept4() and
// reads with recv() or readv(), like the data port and its transports (session_recorder.h).
#undef _FORTIFY_SOURCE  // its headers would define recv() themselves
#include "tests/session_recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

// State of one descriptor. Threads hand a connection over under a lock of their own, so `number`
// and `recorded` need no lock here.
struct Connection {
  std::atomic<int> port = 0;  // where it was accepted; 0: not recorded
  int number = 0;
  size_t recorded = 0;
};

constexpr int kDescriptorsMax = 4096;  // larger descriptors are not recorded
std::array<Connection, kDescriptorsMax> connections;
std::atomic<int> accepted = 0;

Connection* Find(int socket) {
  return socket >= 0 && socket < kDescriptorsMax ? &connections[socket] : nullptr;
}

int LocalPort(int socket) {
  sockaddr_in6 address{};  // IPv4 addresses have the port in the same place
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.sin6_family != AF_INET && address.sin6_family != AF_INET6) return 0;
  return ntohs(address.sin6_port);
}

// Opens the file each time, because an open descriptor would change the process under test.
int OpenRecording(const Connection& connection) {
  const char* const folder = getenv(muster::kRecordingsVariable);
  char path[PATH_MAX];
  if (folder == nullptr || snprintf(path, sizeof(path), "%s/%d-%d-%d", folder,
                                    connection.port.load(), getpid(), connection.number) < 0) {
    return -1;
  }
  return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

void Record(int socket, const iovec* pieces, int count, ssize_t size) {
  Connection* const connection = Find(socket);
  if (connection == nullptr || connection->port == 0 || size <= 0) return;
  const int error = errno;
  const int file = OpenRecording(*connection);
  size_t left = std::min<size_t>(size, muster::kRecordedBytesMax - connection->recorded);
  for (int i = 0; i < count && left > 0 && file >= 0; ++i) {
    const size_t bytes = std::min(left, pieces[i].iov_len);
    if (write(file, pieces[i].iov_base, bytes) != static_cast<ssize_t>(bytes)) break;
    left -= bytes;
    connection->recorded += bytes;
  }
  if (file < 0 || connection->recorded == muster::kRecordedBytesMax) connection->port = 0;
  if (file >= 0) syscall(SYS_close, file);
  errno = error;
}

}  // namespace

extern "C" {

int accept4(int listener, sockaddr* address, socklen_t* size, int flags) {
  const int socket = static_cast<int>(syscall(SYS_accept4, listener, address, size, flags));
  if (Connection* const connection = Find(socket)) {
    connection->number = accepted++;
    connection->recorded = 0;
    connection->port = LocalPort(socket);
  }
  return socket;
}

// The next descriptor with this number may not be an accepted connection.
int close(int file) {
  if (Connection* const connection = Find(file)) connection->port = 0;
  return static_cast<int>(syscall(SYS_close, file));
}

ssize_t readv(int file, const iovec* pieces, int count) {
  const ssize_t size = syscall(SYS_readv, file, pieces, count);
  Record(file, pieces, count, size);
  return size;
}

ssize_t recv(int socket, void* bytes, size_t room, int flags) {
  const ssize_t size = syscall(SYS_recvfrom, socket, bytes, room, flags, nullptr, nullptr);
  const iovec piece{bytes, room};
  if ((flags & MSG_PEEK) == 0) Record(socket, &piece, 1, size);
  return size;
}

// The compiler calls this instead of recv() if it knows the buffer's size (FORTIFY).
ssize_t __recv_chk(int socket, void* bytes, size_t room, size_t, int flags) {
  return recv(socket, bytes, room, flags);
}

}  // extern "C"
