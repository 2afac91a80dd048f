#include "cli/doctor.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/text/output.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/engine/backends/device_list.h"
#include "lib/security/certificate.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "lib/text/byte_size.h"

namespace muster::cli {
namespace {

constexpr rlim_t kFilesWanted = 4096;  // a coordinator with 1,000 members opens about 3,000
// The free shared memory below which the doctor warns. A link takes megabytes of it, the slab of a
// model more.
constexpr int64_t kSharedMemoryWanted = 1 << 30;
constexpr int64_t kDiskWanted = int64_t{5} << 30;
constexpr int64_t kMemlockWanted = int64_t{64} << 20;
constexpr absl::Duration kCertificateWanted = absl::Hours(24 * 7);
constexpr absl::Duration kClockSkewMax = absl::Seconds(2);
// The ports that daemons listen on by default.
struct Port {
  int number;
  const char* use;
};
constexpr Port kPorts[] = {{7070, "coordinator"},
                           {8080, "its status page"},
                           {9400, "its metrics"},
                           {9401, "metrics of a ps"},
                           {9402, "metrics of a worker"}};

std::string Limit(rlim_t limit) {
  return limit == RLIM_INFINITY ? "no limit" : FormatBytes(static_cast<int64_t>(limit));
}

Finding ExamineCores() {
  const int usable = UsableCpus();
  const unsigned all = std::max(1U, std::thread::hardware_concurrency());
  return {"cores", usable < 2 ? Finding::kWarning : Finding::kFine,
          absl::StrCat(usable, " usable of ", all,
                       ": a worker computes on all but one and keeps that for communication"),
          usable < 2 ? "give the process a second core; now computation and communication share one"
                     : ""};
}

Finding ExamineOpenFiles() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{
      "open files", Finding::kFine,
      absl::StrCat("at most ",
                   limit.rlim_cur == RLIM_INFINITY ? "any number" : absl::StrCat(limit.rlim_cur))};
  if (limit.rlim_cur < kFilesWanted) {
    finding.level = Finding::kWarning;
    finding.cure =
        absl::StrCat("ulimit -n ", kFilesWanted,
                     " (systemd: LimitNOFILE=); a coordinator opens three files for each "
                     "connection");
  }
  return finding;
}

bool HasRdma() {
  std::error_code error;
  return std::filesystem::directory_iterator("/sys/class/infiniband", error) !=
         std::filesystem::directory_iterator();
}

Finding ExamineMemlock() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool low =
      limit.rlim_cur != RLIM_INFINITY && static_cast<int64_t>(limit.rlim_cur) < kMemlockWanted;
  const std::string what = absl::StrCat(Limit(limit.rlim_cur), " may be locked");
  if (!low) return {"memlock", Finding::kFine, what};
  if (!HasRdma()) return {"memlock", Finding::kNote, what + ", which only RDMA would need"};
  return {"memlock", Finding::kWarning,
          what + ": too little for --transport=rdma, which has no fallback",
          "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; in a container: the capability "
          "IPC_LOCK)"};
}

Finding ExamineRdma() {
  if (!HasRdma()) return {"RDMA", Finding::kNote, "no card: links are shared memory and TCP"};
  std::vector<std::string> cards;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", error)) {
    cards.push_back(entry.path().filename().string());
  }
  std::ranges::sort(cards);
  return {"RDMA", Finding::kFine,
          absl::StrCat(absl::StrJoin(cards, ", "),
                       ": used if every ps and worker has --transport=rdma")};
}

// Reports the default transports of links. RDMA is not one of them: it works only if all members of
// a fleet use it, so it has to be requested.
Finding ExamineTransport() {
  struct statvfs disk = {};
  const bool shared = statvfs("/dev/shm", &disk) == 0;
  return {"transport", Finding::kFine,
          absl::StrCat(shared ? "shared memory on this host, TCP" : "TCP on this host and",
                       " between hosts", HasRdma() ? "; RDMA with --transport=rdma" : "",
                       " (--transport=auto)")};
}

Finding ExamineSharedMemory() {
  struct statvfs disk = {};
  if (statvfs("/dev/shm", &disk) != 0) {
    return {
        "shared memory", Finding::kFault,
        absl::StrCat("/dev/shm: ", std::strerror(errno), ": processes on one host use TCP instead"),
        "mount a tmpfs at /dev/shm"};
  }
  const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  Finding finding{"shared memory", Finding::kFine,
                  absl::StrCat("/dev/shm has ", FormatBytes(free),
                               " free: links between processes of this host use it")};
  if (free < kSharedMemoryWanted) {
    finding.level = Finding::kWarning;
    finding.cure =
        "enlarge /dev/shm (docker: --shm-size=2g; Kubernetes: an emptyDir of medium Memory)";
  }
  return finding;
}

Finding ExamineGpus() {
  const auto gpus = CountGpus();
  if (gpus.ok()) {
    return {"GPUs", Finding::kFine,
            absl::StrCat(*gpus, " visible: a worker uses them with --devices=cuda:all")};
  }
  std::error_code error;
  const std::string why(gpus.status().message());
  if (std::filesystem::exists("/dev/nvidiactl", error)) {
    return {"GPUs", Finding::kWarning, absl::StrCat("a driver is installed, but: ", why),
            "nvidia-smi shows what the driver sees; CUDA_VISIBLE_DEVICES may hide them; a build "
            "without CUDA has none"};
  }
  return {"GPUs", Finding::kNote, absl::StrCat("none (", why, "): workers use the CPU")};
}

Finding ExamineNccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    return {"NCCL", Finding::kNote,
            "libnccl.so.2 is not found; it is needed only if a worker has several GPUs"};
  }
  dlclose(library);
  return {"NCCL", Finding::kFine, "found libnccl.so.2: the GPUs of one worker reduce with it"};
}

bool IsFree(int port) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_fd < 0) return false;
  const int yes = 1;
  setsockopt(socket_fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool free = bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(socket_fd);
  return free;
}

// A taken port is only a note, because Muster itself may have taken it.
Finding ExaminePorts() {
  std::vector<std::string> taken;
  for (const Port& port : kPorts) {
    if (!IsFree(port.number)) taken.push_back(absl::StrCat(port.number, " (", port.use, ")"));
  }
  if (taken.empty()) return {"ports", Finding::kFine, "7070, 8080 and 9400 to 9402 are free"};
  return {
      "ports", Finding::kNote,
      absl::StrCat("taken: ", absl::StrJoin(taken, ", "),
                   "; unless Muster took them, choose others with --listen, --http and --metrics "
                   "(port 0 picks a free one)")};
}

Finding ExamineDisk(const std::string& folder) {
  struct statvfs disk = {};
  if (statvfs(folder.c_str(), &disk) != 0) {
    return {"disk", Finding::kFault, absl::StrCat(folder, ": ", std::strerror(errno)),
            "name an existing folder with --state_dir"};
  }
  const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  Finding finding{"disk", Finding::kFine, absl::StrCat(FormatBytes(free), " free at ", folder)};
  if (access(folder.c_str(), W_OK) != 0) {
    finding.level = Finding::kFault;
    absl::StrAppend(&finding.what, ", which this user cannot write");
    finding.cure = "choose another folder, or get write permission";
  } else if (free < kDiskWanted) {
    finding.level = Finding::kWarning;
    finding.cure = absl::StrCat("free some space: a coordinator keeps checkpoints of ",
                                "about 12 bytes for each parameter with adam");
  }
  return finding;
}

}  // namespace

std::vector<Finding> ExamineMachine(const MachineOptions& options) {
  return {ExamineCores(),        ExamineOpenFiles(),
          ExamineSharedMemory(), ExamineTransport(),
          ExamineGpus(),         ExamineNccl(),
          ExamineRdma(),         ExamineMemlock(),
          ExaminePorts(),        ExamineDisk(options.state_dir)};
}

Finding ExamineTls(const std::string& folder, absl::Time now) {
  constexpr char kMake[] =
      "create them with muster certs issue; docs/operations/security.md, Certificates";
  const TlsFolder files{folder};
  auto read = [](const std::string& path) {
    std::ifstream file(path);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  };
  if (!ReadCertificate(read(files.authority())).ok()) {
    return {"TLS", Finding::kFault,
            absl::StrCat(files.authority(),
                         " is missing or not a certificate: it names the authority to trust"),
            kMake};
  }
  if (!files.has_certificate()) {
    return {"TLS", Finding::kFine,
            absl::StrCat(folder, " has only ca.crt: calls need a token (--token-file)")};
  }
  const auto facts = ReadCertificate(read(files.certificate()));
  if (!facts.ok()) {
    return {"TLS", Finding::kFault,
            absl::StrCat(files.certificate(), ": ", std::string(facts.status().message())), kMake};
  }
  const std::string until = absl::StrCat("until ", FormatUtc(facts->ends));
  if (facts->ends <= now) {
    return {"TLS", Finding::kFault, absl::StrCat(files.certificate(), " was valid ", until), kMake};
  }
  struct stat key = {};
  if (stat(files.key().c_str(), &key) != 0) {
    return {"TLS", Finding::kFault, absl::StrCat(files.key(), ": ", std::strerror(errno)), kMake};
  }
  if ((key.st_mode & 077) != 0) {
    return {"TLS", Finding::kWarning,
            absl::StrCat(files.key(), " is readable by users other than its owner"),
            absl::StrCat("chmod 600 ", files.key())};
  }
  if (facts->ends - now < kCertificateWanted) {
    return {"TLS", Finding::kWarning, absl::StrCat(files.certificate(), " is valid only ", until),
            "renew it; running processes load a new one by themselves"};
  }
  return {"TLS", Finding::kFine,
          absl::StrCat(facts->identity.ok() ? ToString(*facts->identity) : "a certificate", ", ",
                       until)};
}

Finding ExamineClock(const ClockLook& look) {
  // The coordinator read its clock somewhere between request and response; assume the middle.
  const absl::Duration skew = look.server - (look.asked + (look.answered - look.asked) / 2);
  const absl::Duration size = absl::AbsDuration(skew);
  if (size <= kClockSkewMax) {
    return {"clock", Finding::kFine, "within two seconds of the coordinator's"};
  }
  return {"clock", Finding::kWarning,
          absl::StrCat("the coordinator's is ",
                       absl::FormatDuration(absl::Trunc(size, absl::Milliseconds(100))),
                       skew < absl::ZeroDuration() ? " behind" : " ahead",
                       ": certificates and tokens may be refused, and times may be wrong"),
          "synchronize both with NTP (timedatectl, chronyc tracking)"};
}

std::string DoctorText(absl::Span<const Finding> findings, bool color) {
  static constexpr const char* kMarks[] = {"ok  ", "note", "warn", "FAIL"};
  static constexpr const char* kColors[] = {"\033[32m", "", "\033[33m", "\033[31m"};
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.name.size());
  std::string text;
  int faults = 0, warnings = 0;
  for (const Finding& finding : findings) {
    const bool colored = color && kColors[finding.level][0] != '\0';
    absl::StrAppend(&text, colored ? kColors[finding.level] : "", kMarks[finding.level],
                    colored ? "\033[0m" : "", "  ", finding.name,
                    std::string(width - finding.name.size() + 2, ' '), finding.what, "\n");
    if (!finding.cure.empty()) {
      absl::StrAppend(&text, std::string(width + 8, ' '), "do: ", finding.cure, "\n");
    }
    faults += finding.level == Finding::kFault ? 1 : 0;
    warnings += finding.level == Finding::kWarning ? 1 : 0;
  }
  if (faults + warnings == 0) return absl::StrCat(text, "no faults, no warnings\n");
  auto counted = [](int count, const char* one) {
    return absl::StrCat(count, " ", one, count == 1 ? "" : "s");
  };
  return absl::StrCat(text, counted(faults, "fault"), ", ", counted(warnings, "warning"), "\n");
}

}  // namespace muster::cli
