// Preloaded into a process to give its TCP sockets the faults of a bad network (faulty_network.h).
// The data plane receives with readv() and recv(). gRPC receives with recvmsg(), whose bytes stay
// intact, because only TLS would detect a flipped bit there.
#undef _FORTIFY_SOURCE  // its headers would define recv() themselves
#include "tests/chaos/faulty_network.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

using muster::NetworkFaults;

NetworkFaults* MapFaults() {
  const char* const path = getenv(muster::kNetworkFaultsVariable);
  const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const memory =
      mmap(nullptr, sizeof(NetworkFaults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<NetworkFaults*>(memory);
}

NetworkFaults* Faults() {
  static NetworkFaults* const faults = MapFaults();
  return faults;
}

// A xorshift generator. Each thread of each process has its own sequence.
uint64_t Random() {
  thread_local uint64_t state =
      (static_cast<uint64_t>(gettid()) << 32 ^ reinterpret_cast<uintptr_t>(&state)) | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}
bool Happens(uint32_t of_a_million) { return Random() % 1'000'000 < of_a_million; }

bool IsTcp(int socket) {
  sockaddr_storage address;
  socklen_t size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  return address.ss_family == AF_INET || address.ss_family == AF_INET6;
}

// Applies the faults to a call on `socket`: may delay it. Returns true if the call must fail, with
// the reason in errno.
bool Disturbs(int socket) {
  NetworkFaults* const faults = Faults();
  if (faults == nullptr) return false;
  const uint32_t delays = faults->delays.load(), resets = faults->resets.load();
  if (delays == 0 && resets == 0) return false;
  const bool delay = Happens(delays), reset = Happens(resets);
  if ((!delay && !reset) || !IsTcp(socket)) return false;
  if (delay) {
    ++faults->delayed;
    usleep(1000 + Random() % 50'000);
  }
  if (!reset) return false;
  ++faults->reset;
  shutdown(socket, SHUT_RDWR);
  errno = ECONNRESET;
  return true;
}

void Flip(int socket, const iovec* pieces, int count, ssize_t size) {
  NetworkFaults* const faults = Faults();
  if (faults == nullptr || size <= 0) return;
  const uint64_t flips = faults->flips.load();
  if (flips == 0 || Random() >> 32 >= flips * size) return;
  if (!IsTcp(socket)) return;
  size_t place = Random() % size;
  for (int i = 0; i < count; ++i) {
    if (place >= pieces[i].iov_len) {
      place -= pieces[i].iov_len;
      continue;
    }
    static_cast<uint8_t*>(pieces[i].iov_base)[place] ^= static_cast<uint8_t>(1u << Random() % 8);
    ++faults->flipped;
    return;
  }
}

}  // namespace

extern "C" {

ssize_t readv(int file, const iovec* pieces, int count) {
  if (Disturbs(file)) return -1;
  const ssize_t size = syscall(SYS_readv, file, pieces, count);
  Flip(file, pieces, count, size);
  return size;
}

ssize_t recv(int socket, void* bytes, size_t room, int flags) {
  if (Disturbs(socket)) return -1;
  const ssize_t size = syscall(SYS_recvfrom, socket, bytes, room, flags, nullptr, nullptr);
  const iovec piece{bytes, room};
  Flip(socket, &piece, 1, size);
  return size;
}

// The compiler calls this instead of recv() if it knows the buffer's size (FORTIFY), as in
// handshakes.
ssize_t __recv_chk(int socket, void* bytes, size_t room, size_t, int flags) {
  return recv(socket, bytes, room, flags);
}

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (Disturbs(socket)) return -1;
  return syscall(SYS_recvmsg, socket, message, flags);
}

ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (Disturbs(socket)) return -1;
  return syscall(SYS_sendmsg, socket, message, flags);
}

}  // extern "C"
