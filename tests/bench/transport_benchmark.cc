// Compares the Transport interface with plain sockets, between two processes on this machine over
// TCP on loopback. It measures once with both sides polling, and once with both sleeping while
// idle.
#include <fcntl.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/program/program_path.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/routing/transport_flags.h"
#include "lib/transport/session/session.h"

ABSL_DECLARE_FLAG(std::string, transport);
ABSL_DECLARE_FLAG(std::string, data_port);
ABSL_DECLARE_FLAG(std::string, poll);
ABSL_FLAG(int, repeat, 5, "number of runs of each measurement; the median is printed");
ABSL_FLAG(std::vector<std::string>, sizes, {}, "message sizes in KiB; empty: all");
ABSL_FLAG(bool, poll_too, true, "also measure with both sides polling");
ABSL_FLAG(bool, plain_too, true, "also measure plain sockets");
ABSL_FLAG(bool, spin, false, "set by the program for its other half");
ABSL_FLAG(std::string, role, "", "set by the program when it starts its other half");

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSlabBytes = 64 << 20;
constexpr int kWarmUps = 10;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

std::unique_ptr<Transport> MakeTransport(bool spin) {
  absl::SetFlag(&FLAGS_poll, spin ? "always" : "never");
  const absl::StatusOr<TransportFactory> factory =
      TransportFromFlags({}, *new Metrics);  // lives as long as the process
  CHECK(factory.ok()) << factory.status();
  absl::StatusOr<std::unique_ptr<Transport>> transport = (*factory)();
  CHECK(transport.ok()) << transport.status();
  (*transport)->OpenSession(/*job=*/1, /*generation=*/1, SessionToken());
  return *std::move(transport);
}

// Memory as a shard or worker uses it: registered once, with every payload placed in it.
class Slab {
 public:
  explicit Slab(Transport& transport) : memory_(kSlabBytes, std::byte{1}) {
    auto registration = transport.RegisterMemory(absl::MakeSpan(memory_));
    CHECK(registration.ok()) << registration.status();
    registration_ = *std::move(registration);
  }
  absl::Span<std::byte> first(size_t size) { return absl::MakeSpan(memory_).first(size); }

 private:
  std::vector<std::byte> memory_;
  std::unique_ptr<Transport::MemoryRegistration> registration_;
};

// Answers a push with parameters of the same size. In a stream (rank 1) it answers only every push
// number `step`, with empty parameters. Serve() returns when the peer is gone.
class Server : public MessageReceiver {
 public:
  Server() : transport_(MakeTransport(absl::GetFlag(FLAGS_spin))), slab_(*transport_) {
    transport_->SetReceiver(this);
  }

  void Serve() {
    std::printf("%s\n", absl::BytesToHexString(transport_->address()).c_str());
    std::fflush(stdout);
    while (!done_) {
      if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(1));
    }
  }

  void PeerJoined(PeerId, const LinkIdentity&) override {}
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    return slab_.first(header.length);
  }
  void Received(PeerId from, const WireHeader& header, absl::Span<const std::byte>,
                PayloadLease) override {
    WireHeader answer = header;
    answer.kind = MessageKind::kParams;
    if (header.rank == 1) {
      if (++streamed_ < header.step) return;
      streamed_ = 0;
      answer.length = 0;
    }
    transport_->Send(from, answer, slab_.first(answer.length), nullptr);
  }
  void PayloadLost(PeerId, const WireHeader&) override {}
  void PeerLost(PeerId, const absl::Status&) override { done_ = true; }

 private:
  std::unique_ptr<Transport> transport_;
  Slab slab_;
  int64_t streamed_ = 0;
  bool done_ = false;
};

class Client : public MessageReceiver {
 public:
  Client(absl::string_view server, bool spin)
      : transport_(MakeTransport(spin)), slab_(*transport_) {
    transport_->SetReceiver(this);
    auto peer = transport_->Connect(server, {.self = {.job = 1, .generation = 1}, .token = {}});
    CHECK(peer.ok()) << peer.status();
    peer_ = *peer;
    RoundTrip(0, 1);
  }

  std::string name() const { return transport_->name(); }

  // Returns the median time from a push to the arrival of its parameters over `rounds`, in
  // microseconds.
  double RoundTrip(size_t size, int rounds) {
    std::vector<double> microseconds;
    for (int i = -kWarmUps; i < rounds; ++i) {
      const auto start = Clock::now();
      transport_->Send(peer_, {.kind = MessageKind::kPush, .length = size}, slab_.first(size),
                       nullptr);
      AwaitAnswer();
      if (i >= 0) microseconds.push_back(1e6 * SecondsSince(start));
    }
    return Median(std::move(microseconds));
  }

  // Returns payload bytes per second of `messages` pushes. At most kWindowBytes are in flight, or
  // two messages if these are larger.
  double Goodput(size_t size, int messages) {
    Stream(size, kWarmUps);
    const auto start = Clock::now();
    Stream(size, messages);
    return static_cast<double>(size) * messages / SecondsSince(start);
  }

  void PeerJoined(PeerId, const LinkIdentity&) override {}
  PayloadPlace PlacePayload(PeerId, const WireHeader& header) override {
    return slab_.first(header.length);
  }
  void Received(PeerId, const WireHeader&, absl::Span<const std::byte>, PayloadLease) override {
    ++answers_;
  }
  void PayloadLost(PeerId, const WireHeader&) override { LOG(FATAL) << "a payload was lost"; }
  void PeerLost(PeerId, const absl::Status& why) override {
    LOG(FATAL) << "the other half is gone: " << why;
  }

 private:
  static constexpr size_t kWindowBytes = 64 << 20;

  void ProgressOrWait() {
    if (transport_->Progress() == 0) transport_->Wait(absl::Seconds(1));
  }

  void AwaitAnswer() {
    while (answers_ == 0) ProgressOrWait();
    answers_ = 0;
  }

  void Stream(size_t size, int messages) {
    const int window = static_cast<int>(std::max<size_t>(2, kWindowBytes / size));
    int under_way = 0;
    for (int i = 0; i < messages; ++i) {
      while (under_way >= window) ProgressOrWait();
      ++under_way;
      transport_->Send(peer_,
                       {.kind = MessageKind::kPush, .step = messages, .rank = 1, .length = size},
                       slab_.first(size), [&under_way](const absl::Status& status) {
                         CHECK(status.ok()) << status;
                         --under_way;
                       });
    }
    AwaitAnswer();
    while (under_way > 0) ProgressOrWait();
  }

  std::unique_ptr<Transport> transport_;
  Slab slab_;
  PeerId peer_ = PeerId::kNone;
  int answers_ = 0;
};

// A child program with its output in a pipe.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments) {
    int ends[2];
    CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
    pid_ = fork();
    CHECK_GE(pid_, 0);
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      std::vector<char*> argv;
      for (const std::string& argument : arguments)
        argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    output_ = fdopen(ends[0], "r");
  }
  ~Program() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::fclose(output_);
  }
  Program(const Program&) = delete;

  std::string ReadLine() {
    std::string line;
    for (int c; (c = std::fgetc(output_)) != EOF && c != '\n';)
      line.push_back(static_cast<char>(c));
    return line;
  }

 private:
  pid_t pid_;
  FILE* output_;
};

// Sends the same messages over a plain socket: a header of 64 bytes and a payload.
class PlainSocket {
 public:
  static constexpr size_t kHeaderBytes = WireHeader::kBytes;

  PlainSocket(int fd, bool spin) : fd_(fd), flags_(spin ? MSG_DONTWAIT : 0), memory_(kSlabBytes) {
    const int on = 1;
    CHECK_EQ(setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
  }
  ~PlainSocket() { close(fd_); }
  PlainSocket(const PlainSocket&) = delete;

  void Send(size_t size) {
    iovec parts[] = {{header_, kHeaderBytes}, {memory_.data(), size}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    for (size_t left = kHeaderBytes + size; left > 0;) {
      const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | flags_);
      if (sent < 0) {
        CHECK(errno == EAGAIN || errno == EPIPE || errno == ECONNRESET);
        if (errno != EAGAIN) return;
        continue;
      }
      left -= sent;
      Advance(parts, sent);
    }
  }
  // Returns false if the other side is gone.
  bool Receive(size_t size) { return Fill(header_, kHeaderBytes) && Fill(memory_.data(), size); }

 private:
  static void Advance(iovec (&parts)[2], size_t bytes) {
    for (iovec& part : parts) {
      const size_t taken = std::min(part.iov_len, bytes);
      part.iov_base = static_cast<char*>(part.iov_base) + taken;
      part.iov_len -= taken;
      bytes -= taken;
    }
  }
  bool Fill(char* memory, size_t size) {
    while (size > 0) {
      const ssize_t got = recv(fd_, memory, size, flags_);
      if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
      if (got < 0) continue;
      memory += got;
      size -= got;
    }
    return true;
  }

  const int fd_;
  const int flags_;
  char header_[kHeaderBytes] = {};
  std::vector<char> memory_;
};

// An exchange over a plain socket with a child process, the same as that of Client. In a round trip
// the child answers every message with one of the same `size`. Otherwise it answers only the last
// warm-up and the last of `messages`, with an empty one.
struct Exchange {
  size_t size;
  int messages;
  bool round_trip;
};

// Returns the seconds of an exchange: of the median round trip, or of all messages.
double PlainSeconds(const Exchange& exchange, bool spin) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  CHECK_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  CHECK_EQ(listen(listener, 1), 0);
  CHECK_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int total = exchange.messages + kWarmUps;
  const pid_t child = fork();
  CHECK_GE(child, 0);
  if (child == 0) {
    PlainSocket socket(accept(listener, nullptr, nullptr), spin);
    for (int i = 0; i < total; ++i) {
      if (!socket.Receive(exchange.size)) _exit(1);
      if (exchange.round_trip) {
        socket.Send(exchange.size);
      } else if (i + 1 == kWarmUps || i + 1 == total) {
        socket.Send(0);
      }
    }
    _exit(0);
  }
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  CHECK_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(listener);
  double seconds = 0;
  {
    PlainSocket socket(fd, spin);
    std::vector<double> round_trips;
    Clock::time_point start;
    for (int i = -kWarmUps; i < exchange.messages; ++i) {
      if (exchange.round_trip || i == 0) start = Clock::now();
      socket.Send(exchange.size);
      if (exchange.round_trip) {
        CHECK(socket.Receive(exchange.size));
        if (i >= 0) round_trips.push_back(SecondsSince(start));
      } else if (i == -1) {
        CHECK(socket.Receive(0));
      }
    }
    if (!exchange.round_trip) CHECK(socket.Receive(0));
    seconds = exchange.round_trip ? Median(std::move(round_trips)) : SecondsSince(start);
  }
  waitpid(child, nullptr, 0);
  return seconds;
}

void PrintRow(const std::string& what, const char* unit, std::vector<double> ours,
              std::vector<double> plain, bool more_is_better) {
  if (plain.empty()) {
    std::printf("| %-32s | %9.2f %-4s |\n", what.c_str(), Median(std::move(ours)), unit);
    return;
  }
  const double mine = Median(std::move(ours)), theirs = Median(std::move(plain));
  std::printf("| %-32s | %9.2f %-4s | %9.2f %-4s | %5.2f |\n", what.c_str(), mine, unit, theirs,
              unit, more_is_better ? mine / theirs : theirs / mine);
}

std::string NameOf(size_t size) {
  return size < 1 << 20 ? absl::StrCat(size >> 10, " KiB") : absl::StrCat(size >> 20, " MiB");
}

void Measure(bool spin) {
  std::vector<std::string> arguments = {ProgramPath(), "--role=server",
                                        absl::StrCat("--spin=", spin)};
  for (const char* name : {"transport", "data_port", "data_security", "data_checksum"}) {
    arguments.push_back(
        absl::StrCat("--", name, "=", absl::FindCommandLineFlag(name)->CurrentValue()));
  }
  Program server(arguments);
  Client client(absl::HexStringToBytes(server.ReadLine()), spin);
  constexpr int kRounds = 3000;
  std::vector<size_t> sizes;
  for (size_t size = 4 << 10; size <= kSlabBytes; size *= 4) sizes.push_back(size);
  if (sizes.back() != kSlabBytes) sizes.push_back(kSlabBytes);
  if (const auto wanted = absl::GetFlag(FLAGS_sizes); !wanted.empty()) {
    std::erase_if(sizes, [&](size_t size) {
      return std::ranges::find(wanted, absl::StrCat(size >> 10)) == wanted.end();
    });
  }
  const bool plain_too = absl::GetFlag(FLAGS_plain_too);
  std::vector<double> round_trips, plain_round_trips;
  std::vector<std::vector<double>> rates(sizes.size()), plain_rates(sizes.size());
  // Measures both in turns, so that changes of the machine's speed affect both.
  for (int turn = 0; turn < absl::GetFlag(FLAGS_repeat); ++turn) {
    round_trips.push_back(client.RoundTrip(4096, kRounds));
    if (plain_too) plain_round_trips.push_back(1e6 * PlainSeconds({4096, kRounds, true}, spin));
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int messages =
          static_cast<int>(std::clamp<size_t>((size_t{1} << 30) / sizes[i], 16, 50'000));
      rates[i].push_back(client.Goodput(sizes[i], messages) / 1e9);
      if (!plain_too) continue;
      plain_rates[i].push_back(static_cast<double>(sizes[i]) * messages /
                               PlainSeconds({sizes[i], messages, false}, spin) / 1e9);
    }
  }
  std::printf("\n%s, %s; medians of %d turns; ratio > 1: Muster is faster\n\n",
              client.name().c_str(), spin ? "both poll" : "both sleep while there is nothing to do",
              absl::GetFlag(FLAGS_repeat));
  std::printf("| %-32s | %-14s | %-14s | %-5s |\n", "two processes, one machine", "Transport",
              "plain sockets", "ratio");
  std::printf("|---|---|---|---|\n");
  PrintRow("round trip, 4 KiB each way", "us", round_trips, plain_round_trips, false);
  for (size_t i = 0; i < sizes.size(); ++i) {
    PrintRow(absl::StrCat("goodput, ", NameOf(sizes[i]), " messages"), "GB/s", rates[i],
             plain_rates[i], true);
  }
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  absl::SetProgramUsageMessage(
      "Measures the Transport interface between two processes against plain sockets.");
  absl::SetFlag(&FLAGS_transport, "tcp");
  absl::SetFlag(&FLAGS_data_port, "127.0.0.1:0");
  absl::ParseCommandLine(argc, argv);
  if (absl::GetFlag(FLAGS_role) == "server") {
    muster::Server().Serve();
  } else {
    if (absl::GetFlag(FLAGS_poll_too)) muster::Measure(/*spin=*/true);
    muster::Measure(/*spin=*/false);
  }
  return 0;
}
