#include "services/worker/program/program_port.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kReadBytes = 64 << 10;
// Above it the program does not read. WELCOME alone may have 64 MiB.
constexpr size_t kOutBytesMax = size_t{128} << 20;
constexpr int kFilesMax = 3;
constexpr int kAcceptAgainMs = 1000;  // after the process had no descriptor left

absl::Status PathError(const std::string& path, const char* call) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", call, ": ", std::strerror(errno)));
}

absl::StatusOr<FileDescriptor> MakeSocket() {
  FileDescriptor made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return absl::ResourceExhaustedError(absl::StrCat("socket: ", std::strerror(errno)));
  return made;
}

FileDescriptor OpenProcess(pid_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// Removes a socket that a process left behind.
absl::Status RemoveStaleSocket(const std::string& path, const sockaddr_un& address) {
  struct stat found;
  if (lstat(path.c_str(), &found) != 0) return absl::OkStatus();
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": exists and is no socket"));
  }
  ASSIGN_OR_RETURN(const FileDescriptor probe, MakeSocket());
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno != ECONNREFUSED) {
    return absl::AlreadyExistsError(
        absl::StrCat(path,
                     ": another process listens there: give this worker another --name or "
                     "--program_socket"));
  }
  if (unlink(path.c_str()) != 0) return PathError(path, "unlink");
  return absl::OkStatus();
}

std::string EndBody(absl::string_view reason, absl::string_view message) {
  return JsonText(
      nlohmann::json::object({{"reason", std::string(reason)}, {"message", std::string(message)}}));
}

}  // namespace

absl::StatusOr<std::string> DefaultProgramSocket(absl::string_view member) {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder =
      absl::StrCat(runtime != nullptr && *runtime == '/' ? runtime : "/tmp", "/muster-", geteuid());
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return PathError(folder, "mkdir");
  // Another user may have made it, to let programs attach to a process of its own.
  struct stat found;
  if (lstat(folder.c_str(), &found) != 0) return PathError(folder, "lstat");
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(folder, ": must be a folder of user ",
                                                      geteuid(), " that no other may write to"));
  }
  return absl::StrCat(folder, "/", member, ".sock");
}

absl::StatusOr<std::unique_ptr<ProgramPort>> ProgramPort::Listen(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("'", path, "' has ", path.size(),
                                                   " bytes; a path of a socket has 1 to ",
                                                   sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return PathError(folder, "mkdir");
  RETURN_IF_ERROR(RemoveStaleSocket(path, address));
  ASSIGN_OR_RETURN(FileDescriptor listener, MakeSocket());
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return PathError(path, "bind");
  }
  if (chmod(path.c_str(), 0600) != 0) return PathError(path, "chmod");
  if (listen(listener.get(), kBacklog) != 0) return PathError(path, "listen");
  FileDescriptor bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell) return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  return absl::WrapUnique(new ProgramPort(path, std::move(listener), std::move(bell)));
}

ProgramPort::ProgramPort(std::string path, FileDescriptor listener, FileDescriptor bell)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      bell_(std::move(bell)),
      thread_([this] { Run(); }) {}

ProgramPort::~ProgramPort() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  unlink(path_.c_str());
}

// ---------------------------------------------------------------- any thread

void ProgramPort::Wake() {
  const uint64_t one = 1;
  // It fails only if the bell has rung too often already.
  [[maybe_unused]] const ssize_t written = write(bell_.get(), &one, sizeof(one));
}

void ProgramPort::Serve(Job job, ProgramHost* host) {
  CHECK_LE(std::ssize(job.memory), kFilesMax);
  {
    absl::MutexLock lock(&host_mu_);
    CHECK(host_ == nullptr) << "two jobs at the same time";
    host_ = host;
    job_ = std::make_shared<const Job>(std::move(job));
  }
  Wake();
}

void ProgramPort::Retire() {
  {
    absl::MutexLock host_lock(&host_mu_);
    host_ = nullptr;
    job_ = nullptr;
    attached_ = ProgramId::kNone;
    absl::MutexLock lock(&mu_);
    for (auto& [id, connection] : connections_) {
      if (connection.state == State::kFollower) connection.state = State::kClosing;
    }
  }
  Wake();
}

void ProgramPort::Send(ProgramId program, ProgramMessageKind kind, absl::string_view body) {
  absl::MutexLock lock(&mu_);
  const auto found = connections_.find(program);
  if (found == connections_.end() || found->second.state != State::kAttached) return;
  if (kind == ProgramMessageKind::kBegin) found->second.wants_next = false;
  if (kind == ProgramMessageKind::kResult) found->second.wants_result = false;
  Queue(found->second, {FrameProgramMessage(kind, body)});
}

void ProgramPort::End(ProgramId program, absl::string_view reason, absl::string_view message) {
  absl::MutexLock lock(&mu_);
  const auto found = connections_.find(program);
  if (found == connections_.end() || found->second.state != State::kAttached) return;
  Connection& connection = found->second;
  connection.state = State::kEnded;
  const std::string body = EndBody(reason, message);
  if (connection.wants_next || connection.wants_result) {
    Queue(connection, {FrameProgramMessage(ProgramMessageKind::kEnd, body)});
  } else {
    connection.end = body;
  }
}

void ProgramPort::Queue(Connection& connection, Frame frame) {
  connection.out_bytes += frame.bytes.size();
  connection.out.push_back(std::move(frame));
  Flush(connection);
  if (connection.out_bytes > kOutBytesMax) connection.broken = true;
  if (connection.broken || !connection.out.empty()) Wake();
}

// Writes as much as the socket takes.
void ProgramPort::Flush(Connection& connection) {
  while (!connection.out.empty() && !connection.broken) {
    Frame& frame = connection.out.front();
    iovec data{.iov_base = frame.bytes.data() + connection.sent,
               .iov_len = frame.bytes.size() - connection.sent};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    union {
      char bytes[CMSG_SPACE(kFilesMax * sizeof(int))];
      cmsghdr aligned;
    } buffer{};
    if (frame.files != nullptr && connection.sent == 0) {
      const size_t bytes = frame.files->memory.size() * sizeof(int);
      message.msg_control = buffer.bytes;
      message.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(bytes);
      for (size_t i = 0; i < frame.files->memory.size(); ++i) {
        const int file = frame.files->memory[i].get();
        std::memcpy(CMSG_DATA(header) + i * sizeof(file), &file, sizeof(file));
      }
    }
    const ssize_t sent = sendmsg(connection.socket.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      connection.broken = errno != EAGAIN;
      return;
    }
    connection.sent += static_cast<size_t>(sent);
    connection.out_bytes -= static_cast<size_t>(sent);
    if (connection.sent < frame.bytes.size()) continue;
    connection.out.pop_front();
    connection.sent = 0;
  }
}

// ---------------------------------------------------------------- the port's thread

void ProgramPort::Run() {
  std::vector<pollfd> polled;
  std::vector<ProgramId> ids;  // of polled[2 + 2 * i] and the process after it
  for (;;) {
    polled = {{.fd = bell_.get(), .events = POLLIN},
              {.fd = accepts_ ? listener_.get() : -1, .events = POLLIN}};
    ids.clear();
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
      for (auto& [id, connection] : connections_) {
        const bool writes = !connection.out.empty();
        polled.push_back({.fd = connection.socket.get(),
                          .events = static_cast<int16_t>(POLLIN | (writes ? POLLOUT : 0))});
        polled.push_back(
            {.fd = connection.process ? connection.process.get() : -1, .events = POLLIN});
        ids.push_back(id);
      }
    }
    if (poll(polled.data(), polled.size(), accepts_ ? -1 : kAcceptAgainMs) < 0) continue;
    uint64_t rung;
    [[maybe_unused]] const ssize_t read_bytes = read(bell_.get(), &rung, sizeof(rung));
    for (size_t i = 0; i < ids.size(); ++i) {
      const int16_t events = polled[2 + 2 * i].revents;
      if ((events & POLLOUT) != 0) {
        absl::MutexLock lock(&mu_);
        Flush(connections_.at(ids[i]));
      }
      if ((events & ~POLLOUT) != 0) Read(ids[i]);
      if (polled[3 + 2 * i].revents != 0) ReadRest(ids[i]);
    }
    // Ended connections go first: a program that takes the place of a killed one attaches at once.
    CloseEnded();
    if ((polled[1].revents & POLLIN) != 0 || !accepts_) Accept();
    AttachWaiting();
    CloseEnded();
  }
}

// Accepts one connection. Others follow in the next rounds, so those that ended make room for them.
void ProgramPort::Accept() {
  FileDescriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  // If this process has no free descriptor, the listener stays readable, so it must rest for a
  // while.
  accepts_ = socket || (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS);
  if (!socket) return;
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  const bool known = getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
  const auto id = ProgramId(++last_id_);
  size_t count;
  {
    absl::MutexLock lock(&mu_);
    Connection& connection = connections_[id];
    connection.socket = std::move(socket);
    if (known && peer.pid > 0) connection.process = OpenProcess(peer.pid);
    count = connections_.size();
  }
  if (!known || peer.uid != geteuid()) {
    LOG(WARNING) << path_ << ": process " << peer.pid << " of user " << peer.uid << " was refused";
    Refuse(id, "OTHER_USER",
           absl::StrCat("this worker runs as user ", geteuid(), ", the program as user ", peer.uid,
                        ": run both as one user"));
  } else if (count > kConnectionsMax) {
    Refuse(id, "TOO_MANY",
           absl::StrCat("this worker has ", kConnectionsMax, " connections already"));
  }
}

// The process has ended, so what it sent is all here.
void ProgramPort::ReadRest(ProgramId id) {
  while (Read(id)) continue;
  absl::MutexLock lock(&mu_);
  connections_.at(id).broken = true;
}

bool ProgramPort::HasHungUp(ProgramId id) const {
  const Connection& connection = connections_.at(id);
  pollfd ends[] = {{.fd = connection.socket.get(), .events = POLLRDHUP},
                   {.fd = connection.process ? connection.process.get() : -1, .events = POLLIN}};
  return poll(ends, 2, 0) > 0;
}

bool ProgramPort::Read(ProgramId id) {
  Connection& connection = connections_.at(id);
  std::array<char, kReadBytes> bytes;
  const ssize_t size = recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  bool closing;
  {
    absl::MutexLock lock(&mu_);
    if (size <= 0) connection.broken = true;
    closing = connection.state == State::kClosing;
  }
  if (size <= 0 || closing) return false;
  connection.in.append(bytes.data(), static_cast<size_t>(size));
  ReadFrames(id);
  return true;
}

void ProgramPort::ReadFrames(ProgramId id) {
  Connection& connection = connections_.at(id);
  size_t begin = 0;
  absl::Status fault;
  while (fault.ok() && connection.in.size() - begin >= kProgramHeaderBytes) {
    const absl::string_view rest = absl::string_view(connection.in).substr(begin);
    const absl::StatusOr<ProgramHeader> header = ParseProgramHeader(rest);
    if (!header.ok()) {
      fault = header.status();
      break;
    }
    if (rest.size() - kProgramHeaderBytes < header->length) break;
    fault = Take(id, header->kind, rest.substr(kProgramHeaderBytes, header->length));
    begin += kProgramHeaderBytes + header->length;
  }
  connection.in.erase(0, begin);
  if (fault.ok()) return;
  Refuse(id, absl::IsFailedPrecondition(fault) ? "PROTOCOL" : "BAD_MESSAGE", fault.message());
}

absl::Status ProgramPort::Take(ProgramId id, uint8_t kind, absl::string_view body) {
  ASSIGN_OR_RETURN(ProgramMessage message, ParseProgramMessage(kind, body));
  if (auto* const hello = std::get_if<ProgramHello>(&message)) {
    return TakeHello(id, std::move(*hello));
  }
  {
    absl::MutexLock lock(&mu_);
    Connection& connection = connections_.at(id);
    if (connection.state == State::kClosing) return absl::OkStatus();
    if (connection.state == State::kEnded) return TakeAfterEnd(connection, message);
    // A follower may fail, too: its error is the one that the user looks for.
    const bool follower_fails =
        connection.state == State::kFollower && std::holds_alternative<ProgramFailure>(message);
    if (connection.state != State::kAttached && !follower_fails) {
      return absl::InvalidArgumentError(
          absl::StrCat("a message of kind ", kind, " of a program that is not attached"));
    }
    if (std::holds_alternative<ProgramEvaluation>(message)) connection.wants_result = true;
    if (std::holds_alternative<ProgramNext>(message) &&
        std::exchange(connection.wants_next, true)) {
      return absl::InvalidArgumentError("NEXT while another NEXT is not answered");
    }
  }
  absl::MutexLock lock(&host_mu_);
  // The host may have retired meanwhile, and another may serve.
  if (host_ == nullptr || (attached_ != id && !IsFollower(id))) return absl::OkStatus();
  return host_->Received(id, std::move(message));
}

bool ProgramPort::IsFollower(ProgramId id) {
  absl::MutexLock lock(&mu_);
  return connections_.at(id).state == State::kFollower;
}

// A program that waits for an answer gets END.
absl::Status ProgramPort::TakeAfterEnd(Connection& connection, const ProgramMessage& message) {
  const bool waits = std::holds_alternative<ProgramNext>(message) ||
                     std::holds_alternative<ProgramEvaluation>(message);
  if (!waits || connection.end.empty()) return absl::OkStatus();
  Queue(connection,
        {FrameProgramMessage(ProgramMessageKind::kEnd, std::exchange(connection.end, ""))});
  return absl::OkStatus();
}

absl::Status ProgramPort::TakeHello(ProgramId id, ProgramHello hello) {
  absl::MutexLock lock(&mu_);
  Connection& connection = connections_.at(id);
  if (connection.state == State::kClosing) return absl::OkStatus();
  if (connection.state != State::kNew) return absl::InvalidArgumentError("a second HELLO");
  if (hello.protocol != kProgramProtocol) {
    return absl::FailedPreconditionError(
        absl::StrCat("this worker speaks protocol ", kProgramProtocol, ", the program ",
                     hello.protocol, ": use the package of the worker's version"));
  }
  connection.state = State::kWaiting;
  connection.hello = std::move(hello);
  return absl::OkStatus();
}

void ProgramPort::AttachWaiting() {
  absl::MutexLock lock(&host_mu_);
  for (auto& [id, connection] : connections_) {
    bool waits;
    {
      absl::MutexLock state_lock(&mu_);
      waits = connection.state == State::kWaiting;
    }
    if (waits) AttachOrTell(id, connection);
  }
}

void ProgramPort::AttachOrTell(ProgramId id, Connection& connection) {
  const std::string& wanted = connection.hello.job;
  if (job_ == nullptr || (!wanted.empty() && wanted != job_->id && wanted != job_->name)) {
    const std::string why = job_ == nullptr
                                ? "no job for this worker yet"
                                : absl::StrCat("the worker serves ", job_->id, ", not ", wanted);
    if (std::exchange(connection.told, why) == why) return;
    absl::MutexLock lock(&mu_);
    return Queue(connection,
                 {FrameProgramMessage(ProgramMessageKind::kWaiting, JsonText({{"message", why}}))});
  }
  const bool follows = connection.hello.process > 0;
  if (!follows && attached_ != ProgramId::kNone) {
    if (HasHungUp(attached_)) return;  // it is closed in a moment
    return Refuse(id, "BUSY",
                  absl::StrCat("another program is attached to this worker for ", job_->id,
                               ": end it first"));
  }
  {
    absl::MutexLock lock(&mu_);
    connection.state = follows ? State::kFollower : State::kAttached;
    Queue(connection, {FrameProgramMessage(ProgramMessageKind::kWelcome, job_->welcome), job_});
  }
  if (follows) return;
  LOG(INFO) << job_->id << ": the program of process " << connection.hello.pid << " is attached";
  attached_ = id;
  host_->Attached(id);
}

void ProgramPort::Refuse(ProgramId id, absl::string_view reason, absl::string_view message) {
  LOG(INFO) << path_ << ": a program is refused: " << reason << ": " << message;
  absl::MutexLock lock(&mu_);
  Connection& connection = connections_.at(id);
  connection.state = State::kClosing;
  Queue(connection, {FrameProgramMessage(ProgramMessageKind::kRefused, EndBody(reason, message))});
  // If bytes are unread when the socket closes, the program would see an error before REFUSED.
  std::array<char, kReadBytes> bytes;
  for (size_t most = 0; most < kProgramBodyBytesMax; most += bytes.size()) {
    if (recv(connection.socket.get(), bytes.data(), bytes.size(), 0) <= 0) break;
  }
}

// Closes connections that broke, and those that should end and were sent all they could be sent.
void ProgramPort::CloseEnded() {
  std::vector<ProgramId> ended;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [id, connection] : connections_) {
      if (connection.broken || connection.state == State::kClosing) ended.push_back(id);
    }
    for (const ProgramId id : ended) connections_.erase(id);
  }
  if (ended.empty()) return;
  absl::MutexLock lock(&host_mu_);
  for (const ProgramId id : ended) {
    if (id != attached_) continue;
    attached_ = ProgramId::kNone;
    LOG(INFO) << job_->id << ": the program has closed its connection";
    host_->Lost(id);
  }
}

}  // namespace muster
