#include "tests/listeners.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace muster {

namespace {

// Returns the addresses at which the process listens, like "0100007F:1F90" (IPv6: 32 digits before
// the colon). It looks up the inodes of the process's sockets in /proc/net/tcp and tcp6.
std::vector<std::string> ListeningAt(pid_t pid) {
  std::set<std::string> inodes;
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> listening;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (fields.size() < 10 || fields[3] != "0A" || !inodes.contains(fields[9])) continue;
      listening.push_back(fields[1]);
    }
  }
  return listening;
}

// Returns whether an address of /proc/net/tcp is a loopback address. The kernel prints 32-bit words
// in host order, so the first byte of an IPv4 address comes last.
bool IsLoopback(absl::string_view address) {
  if (address.size() == 8) return absl::EndsWith(address, "7F");
  constexpr absl::string_view kMappedIPv4 = "0000000000000000FFFF0000";
  return address == "00000000000000000000000001000000" ||
         (absl::StartsWith(address, kMappedIPv4) && absl::EndsWith(address, "7F"));
}

}  // namespace

// The last 32-bit word of a mapped IPv6 address is the IPv4 address.
std::vector<sockaddr_in> Listeners(pid_t pid) {
  std::vector<sockaddr_in> listeners;
  for (const std::string& at : ListeningAt(pid)) {
    const size_t colon = at.rfind(':');
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr =
        static_cast<uint32_t>(std::stoul(at.substr(colon - 8, 8), nullptr, 16));
    address.sin_port = htons(static_cast<uint16_t>(std::stoul(at.substr(colon + 1), nullptr, 16)));
    listeners.push_back(address);
  }
  return listeners;
}

std::vector<std::string> ListenersBeyondLoopback(pid_t pid) {
  std::vector<std::string> beyond = ListeningAt(pid);
  std::erase_if(beyond,
                [](const std::string& at) { return IsLoopback(at.substr(0, at.rfind(':'))); });
  return beyond;
}

int ConnectTo(const sockaddr_in& address, int seconds) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience{.tv_sec = seconds};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

// The peer may close before it has received everything. This is not an error of the test.
void SendAll(int socket, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

bool SendBytes(const sockaddr_in& address, const std::string& bytes) {
  const int fd = ConnectTo(address);
  if (fd < 0) return false;
  SendAll(fd, bytes);
  close(fd);
  return true;
}

}  // namespace muster
