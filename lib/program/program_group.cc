#include "lib/program/program_group.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr size_t kErrorLineBytesMax = 1024;

// Returns a port of 127.0.0.1 that is free now. Another process may take it before it is used.
absl::StatusOr<int> FreePort() {
  const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      probe >= 0 && bind(probe, generic, length) == 0 && getsockname(probe, generic, &length) == 0;
  const int error = errno;
  if (probe >= 0) close(probe);
  if (!found) {
    return absl::UnavailableError(
        absl::StrCat("no free port for the processes of the program: ", std::strerror(error)));
  }
  return ntohs(address.sin_port);
}

}  // namespace

ProgramGroup::ProgramGroup(Options options)
    : options_(std::move(options)), running_(0), errors_(options_.processes) {}

absl::StatusOr<std::unique_ptr<ProgramGroup>> ProgramGroup::Start(Options options) {
  std::unique_ptr<ProgramGroup> group(new ProgramGroup(std::move(options)));
  RETURN_IF_ERROR(group->StartAll());
  return group;
}

absl::Status ProgramGroup::StartAll() {
  std::vector<std::string> common;
  // Python would otherwise keep its output back until it has several KiB of it.
  if (std::getenv("PYTHONUNBUFFERED") == nullptr) common.push_back("PYTHONUNBUFFERED=1");
  if (options_.processes > 1) {
    ASSIGN_OR_RETURN(const int port, FreePort());
    common.push_back("MASTER_ADDR=127.0.0.1");
    common.push_back(absl::StrCat("MASTER_PORT=", port));
  }
  common.push_back(absl::StrCat("MUSTER_LOCAL_PROCESSES=", options_.processes));
  common.insert(common.end(), options_.environment.begin(), options_.environment.end());
  {
    absl::MutexLock lock(&mu_);
    running_ = options_.processes;  // before the first one can end
  }
  for (int i = 0; i < options_.processes; ++i) {
    std::vector<std::string> environment = common;
    environment.push_back(absl::StrCat("MUSTER_LOCAL_PROCESS=", i));
    if (i == 0) {
      environment.insert(environment.end(), options_.first_environment.begin(),
                         options_.first_environment.end());
    }
    ASSIGN_OR_RETURN(
        children_.emplace_back(),
        ChildProcess::Start(
            {.argv = options_.command,
             .environment = std::move(environment),
             .directory = options_.directory,
             .on_line = [this, i](OutputStream stream,
                                  absl::string_view line) { TakeLine(i, stream, line); },
             .on_end = [this, i](const ProcessEnd& end) { TakeEnd(i, end); }}));
  }
  return absl::OkStatus();
}

ProgramGroup::~ProgramGroup() = default;

void ProgramGroup::TakeLine(int process, OutputStream stream, absl::string_view line) {
  options_.on_line(process, stream, line);
  // A line that ends with '\r' is a progress bar, which the next line replaces.
  if (stream != OutputStream::kStderr || absl::EndsWith(line, "\r")) return;
  absl::MutexLock lock(&mu_);
  std::deque<std::string>& lines = errors_[process];
  if (lines.size() == kErrorLinesMax) lines.pop_front();
  lines.emplace_back(line.substr(0, kErrorLineBytesMax));
  if (!absl::EndsWith(lines.back(), "\n")) lines.back() += "\n";
}

void ProgramGroup::TakeEnd(int process, const ProcessEnd& end) {
  {
    absl::MutexLock lock(&mu_);
    --running_;
    if (outcome_.has_value() || (end.ok() && running_ > 0)) return;
    outcome_ = {.process = process, .end = end, .errors = absl::StrJoin(errors_[process], "")};
  }
  options_.on_outcome();
}

std::optional<ProgramGroup::Outcome> ProgramGroup::outcome() const {
  absl::MutexLock lock(&mu_);
  return outcome_;
}

void ProgramGroup::Signal(int signal) {
  for (const auto& child : children_) child->Signal(signal);
}

bool ProgramGroup::AwaitEnd(absl::Duration timeout) const {
  absl::MutexLock lock(&mu_);
  auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return running_ == 0; };
  return AwaitFor(&mu_, absl::Condition(&ended), timeout);
}

void ProgramGroup::Stop(absl::Duration grace) {
  Signal(SIGTERM);
  if (AwaitEnd(grace)) return;
  Signal(SIGKILL);
  absl::MutexLock lock(&mu_);
  auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return running_ == 0; };
  mu_.Await(absl::Condition(&ended));
}

}  // namespace muster
