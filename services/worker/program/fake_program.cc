#include "services/worker/program/fake_program.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace muster {
namespace {

using nlohmann::json;
using Kind = ProgramMessageKind;

constexpr int kW = 0, kB = 2;  // parameters of ProgramJob()

// A folder that is removed when the test program ends.
struct SocketFolder {
  SocketFolder() { PCHECK(mkdtemp(path.data()) != nullptr); }
  ~SocketFolder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
  std::string path = "/tmp/muster_test_XXXXXX";
};

}  // namespace

std::string NewSocketPath() {
  static const SocketFolder folder;
  static std::atomic<int> number = 0;
  return absl::StrCat(folder.path, "/", ++number, ".sock");
}

FakeProgram::FakeProgram(const std::string& path)
    : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CHECK_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  PCHECK(connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const timeval limit{.tv_sec = 30};
  PCHECK(setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
}

void FakeProgram::Join(const std::string& job, int process) {
  Send(Kind::kHello, {{"protocol", 1},
                      {"version", "test"},
                      {"job", job},
                      {"process", process},
                      {"processes", process + 1},
                      {"pid", getpid()}});
  Message message = Receive();
  while (message.kind == Kind::kWaiting) message = Receive();
  CHECK(message.kind == Kind::kWelcome) << static_cast<int>(message.kind) << message.body;
  welcome_ = std::move(message.body);
  CHECK_EQ(files_.size(), 3);
  const uint64_t bytes = 4 * welcome_["elements"].get<uint64_t>();
  for (const FileDescriptor& file : files_) {
    memory_.push_back(SealedMemory::Map(file, bytes, SealedMemory::Access::kReadWrite).value());
  }
}

void FakeProgram::Attach(int64_t samples) {
  Join();
  Send(Kind::kData, {{"samples", samples}, {"evaluation_samples", 0}});
}

json FakeProgram::Next(const json& finished) {
  Send(Kind::kNext, {{"finished", finished}});
  Message message = Receive();
  while (message.kind == Kind::kResult) message = Receive();
  CHECK(message.kind == Kind::kBegin || message.kind == Kind::kEnd)
      << static_cast<int>(message.kind) << message.body;
  if (message.kind == Kind::kBegin) begin_ = message.body;
  return message.body;
}

json FakeProgram::Finished(double loss) const {
  return {{"attempt", begin_["attempt"]},
          {"step", begin_["step"]},
          {"samples", begin_["samples"]},
          {"loss", JsonNumber(loss)},
          {"metrics", {{"twice", JsonNumber(2 * loss)}}},
          {"forward_seconds", 0.0},
          {"backward_seconds", 0.0},
          {"data_seconds", 0.0}};
}

void FakeProgram::Announce(const std::vector<Gradient>& gradients) {
  Announce(begin_["attempt"], begin_["samples"].get<float>() / welcome_["batch_size"].get<float>(),
           gradients);
}

void FakeProgram::Announce(int64_t attempt, float weight, const std::vector<Gradient>& gradients) {
  std::string body(16 + 16 * gradients.size(), '\0');
  const auto put = [&](size_t at, const auto& value) {
    std::memcpy(body.data() + at, &value, sizeof(value));
  };
  put(0, attempt);
  put(8, weight);
  put(12, static_cast<uint32_t>(gradients.size()));
  for (size_t i = 0; i < gradients.size(); ++i) {
    put(16 + 16 * i, static_cast<uint32_t>(gradients[i].parameter));
    put(20 + 16 * i, gradients[i].flags);
    put(24 + 16 * i, gradients[i].learning_rate);
  }
  SendBytes(FrameProgramMessage(Kind::kGradients, body));
}

void FakeProgram::Send(Kind kind, const json& body) {
  SendBytes(FrameProgramMessage(kind, body.dump()));
}

// The worker may have ended the connection; the next Receive() shows it.
void FakeProgram::SendBytes(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

// Returns fewer bytes at the end of the connection.
std::string FakeProgram::ReadExactly(size_t bytes) {
  std::string read(bytes, '\0');
  size_t have = 0;
  while (have < bytes) {
    iovec data{.iov_base = read.data() + have, .iov_len = bytes - have};
    union {
      char bytes[CMSG_SPACE(8 * sizeof(int))];
      cmsghdr aligned;
    } control;
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    const ssize_t size = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    CHECK(size >= 0 || errno == ECONNRESET) << "no answer: " << std::strerror(errno);
    if (size <= 0) break;
    have += static_cast<size_t>(size);
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header == nullptr) continue;
    for (size_t at = 0; at + sizeof(int) <= header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int file;
      std::memcpy(&file, CMSG_DATA(header) + at, sizeof(file));
      files_.emplace_back(file);
    }
  }
  read.resize(have);
  return read;
}

FakeProgram::Message FakeProgram::Receive() {
  const std::string header = ReadExactly(kProgramHeaderBytes);
  if (header.size() < kProgramHeaderBytes) return {};
  uint32_t length;
  std::memcpy(&length, header.data(), sizeof(length));
  const std::string body = ReadExactly(length);
  CHECK_EQ(body.size(), length);
  return {static_cast<Kind>(header[4]), json::parse(body)};
}

json FakeProgram::Await(Kind kind) {
  Message message = Receive();
  CHECK(message.kind == kind) << static_cast<int>(message.kind) << message.body;
  return std::move(message.body);
}

absl::Span<float> FakeProgram::Tensor(int memory, int parameter) {
  const json& told = welcome_["parameters"][parameter];
  int64_t size = 1;
  for (const json& extent : told["shape"]) size *= extent.get<int64_t>();
  auto* const base = reinterpret_cast<float*>(memory_[memory].memory().data());
  return {base + told["offset"].get<int64_t>(), static_cast<size_t>(size)};
}

double FakeProgram::ComputeLine() {
  const auto first = begin_["batch"].get<int64_t>() * 32 + begin_["first_position"].get<int64_t>();
  const auto samples = begin_["samples"].get<int64_t>();
  const float w = values(kW)[0], b = values(kB)[0];
  double loss = 0, dw = 0, db = 0;
  for (int64_t i = first; i < first + samples; ++i) {
    const double x = static_cast<double>(i * 37 % 64) / 32 - 1;
    const double error = w * x + b - (3 * x - 0.5);
    loss += error * error;
    dw += 2 * error * x;
    db += 2 * error;
  }
  const double weight = static_cast<double>(samples) / 32;
  const auto count = static_cast<double>(samples);
  gradient(kW)[0] = static_cast<float>(dw / count * weight);
  gradient(kB)[0] = static_cast<float>(db / count * weight);
  return loss / count;
}

json FakeProgram::TrainLine() {
  for (json finished;;) {
    json answer = Next(finished);
    if (answer.contains("reason")) return answer;
    const double loss = ComputeLine();
    Announce({{.parameter = kB}});
    Announce({{.parameter = kW}});
    finished = Finished(loss);
  }
}

}  // namespace muster
