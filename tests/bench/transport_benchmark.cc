// The Transport interface between two processes on this machine, side by side with ucx_perftest
// over the same
// network: once with both sides polling, once with both sleeping while there is nothing to do.
#include <fcntl.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "lib/program/program_path.h"
#include "lib/transport/transport.h"
#include "lib/transport/ucx_transport.h"
#include "lib/transport/wire.h"

ABSL_FLAG(int, repeat, 5, "how often each measurement is taken; the median counts");
ABSL_FLAG(bool, spin, false, "set by the program for its other half");
ABSL_FLAG(bool, perftest, true, "measure ucx_perftest (package ucx-utils) as well");
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

std::unique_ptr<UcxTransport> MakeTransport(bool spin) {
  auto transport = UcxTransport::Create({.polling = {.regardless = spin}});
  CHECK(transport.ok()) << transport.status();
  return *std::move(transport);
}

// Memory as a shard or worker keeps it: registered once, every payload placed in it.
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

// Answers a push with parameters of the same size, or, in a stream (rank 1), the push whose chunk
// is the last (step) with parameters of no size. Ends when its peer is gone.
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

  PayloadPlace PlacePayload(const WireHeader& header) override {
    return slab_.first(header.length);
  }

  void Received(const WireHeader& header, absl::Span<const std::byte> payload,
                PayloadLease) override {
    WireHeader answer = header;
    answer.kind = MessageKind::kParams;
    if (header.kind == MessageKind::kHello) {
      auto peer = transport_->Connect(
          absl::string_view(reinterpret_cast<const char*>(payload.data()), payload.size()));
      CHECK(peer.ok()) << peer.status();
      peer_ = *peer;
      answer.length = 0;
    } else if (header.rank == 1) {
      if (++streamed_ < header.step) return;
      streamed_ = 0;
      answer.length = 0;
    }
    transport_->Send(peer_, answer, slab_.first(answer.length), nullptr);
  }

  void PeerLost(PeerId, const absl::Status&) override { done_ = true; }

 private:
  std::unique_ptr<UcxTransport> transport_;
  Slab slab_;
  PeerId peer_ = PeerId::kNone;
  int64_t streamed_ = 0;
  bool done_ = false;
};

class Client : public MessageReceiver {
 public:
  Client(absl::string_view server, bool spin)
      : transport_(MakeTransport(spin)), slab_(*transport_) {
    transport_->SetReceiver(this);
    auto peer = transport_->Connect(server);
    CHECK(peer.ok()) << peer.status();
    peer_ = *peer;
    const std::string address = transport_->address();
    const auto hello =
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(address.data()), address.size());
    transport_->Send(peer_, {.kind = MessageKind::kHello, .length = hello.size()}, hello, nullptr);
    AwaitAnswer();
  }

  std::string name() const { return transport_->name(); }

  // Microseconds from a push to its parameters, the median of `rounds`.
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

  // Payload bytes per second of `messages` pushes with at most kWindowBytes under way.
  double Goodput(size_t size, int messages) {
    Stream(size, kWarmUps);
    const auto start = Clock::now();
    Stream(size, messages);
    return static_cast<double>(size) * messages / SecondsSince(start);
  }

  PayloadPlace PlacePayload(const WireHeader& header) override {
    return slab_.first(header.length);
  }
  void Received(const WireHeader&, absl::Span<const std::byte>, PayloadLease) override {
    ++answers_;
  }
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

  std::unique_ptr<UcxTransport> transport_;
  Slab slab_;
  PeerId peer_ = PeerId::kNone;
  int answers_ = 0;
};

// A program with its output in a pipe.
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

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  CHECK_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  CHECK_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

// One column of ucx_perftest's final line: "iterations,50%,average,overall,MB/s,MB/s,msg/s,msg/s".
// Empty when there is no ucx_perftest.
std::vector<double> Perftest(const std::string& test, size_t size, int rounds, bool spin) {
  const std::string port = absl::StrCat(FreePort());
  // Plain TCP, as our links: with endpoints that notice a dead peer UCX has no shared memory.
  std::vector<std::string> common = {"env", "UCX_TLS=tcp", "ucx_perftest", "-t", test, "-p", port};
  for (const char* argument : {"-E", spin ? "poll" : "sleep"}) common.push_back(argument);
  if (!spin) common.push_back("-I");  // what sleeping needs
  std::vector<std::string> client = common;
  for (const std::string& argument :
       {std::string("-s"), absl::StrCat(size), std::string("-n"), absl::StrCat(rounds),
        std::string("-w"), absl::StrCat(kWarmUps), std::string("-f"), std::string("-v"),
        std::string("127.0.0.1")}) {
    client.push_back(argument);
  }
  const Program server(common);
  for (int attempt = 0; attempt < 50; ++attempt) {  // until the server listens
    Program program(client);
    std::string last;
    for (std::string line = program.ReadLine(); !line.empty(); line = program.ReadLine())
      last = line;
    std::vector<double> columns;
    for (absl::string_view field : absl::StrSplit(last, ',')) {
      double value = 0;
      if (absl::SimpleAtod(field, &value)) columns.push_back(value);
    }
    if (columns.size() == 8) return columns;
    usleep(20'000);
  }
  return {};
}

void PrintRow(const char* what, const char* unit, std::vector<double> ours,
              std::vector<double> perftest, bool more_is_better) {
  const double mine = Median(std::move(ours)), theirs = Median(std::move(perftest));
  if (theirs == 0) {
    std::printf("| %-42s | %9.2f %-4s | %14s | %5s |\n", what, mine, unit, "-", "-");
    return;
  }
  std::printf("| %-42s | %9.2f %-4s | %9.2f %-4s | %5.2f |\n", what, mine, unit, theirs, unit,
              more_is_better ? mine / theirs : theirs / mine);
}

void Measure(bool spin) {
  Program server({ProgramPath(), "--role=server", absl::StrCat("--spin=", spin)});
  Client client(absl::HexStringToBytes(server.ReadLine()), spin);
  struct Goodput {
    const char* what;
    size_t size;
    int messages;
    size_t perftest_size;
    int perftest_messages;
  };
  const Goodput goodputs[] = {
      {"goodput, 4 MiB messages", 4 << 20, 256, 4 << 20, 256},
      {"goodput, 64 MiB messages", 64 << 20, 16, 64 << 20, 16},
      {"goodput, 64 MiB in 4 MiB chunks", 4 << 20, 256, 64 << 20, 16},
  };
  constexpr int kRounds = 3000;
  std::vector<double> round_trips, perftest_round_trips;
  std::vector<double> rates[3], perftest_rates[3];
  const bool perftest = absl::GetFlag(FLAGS_perftest);
  // Turn by turn, so that a change of the machine's mood meets both.
  for (int turn = 0; turn < absl::GetFlag(FLAGS_repeat); ++turn) {
    round_trips.push_back(client.RoundTrip(4096, kRounds));
    if (perftest) {
      // It reports half a round trip.
      if (auto columns = Perftest("ucp_am_lat", 4096, kRounds, spin); !columns.empty()) {
        perftest_round_trips.push_back(2 * columns[1]);
      }
    }
    for (int i = 0; i < 3; ++i) {
      const Goodput& goodput = goodputs[i];
      rates[i].push_back(client.Goodput(goodput.size, goodput.messages) / 1e9);
      if (!perftest) continue;
      if (auto columns =
              Perftest("ucp_am_bw", goodput.perftest_size, goodput.perftest_messages, spin);
          !columns.empty()) {
        perftest_rates[i].push_back(columns[5] * (1 << 20) / 1e9);
      }
    }
  }
  std::printf("\n%s, %s; medians of %d turns; ratio > 1: Muster is faster\n\n",
              client.name().c_str(), spin ? "both poll" : "both sleep while there is nothing to do",
              absl::GetFlag(FLAGS_repeat));
  std::printf("| %-42s | %-14s | %-14s | %-5s |\n", "two processes, one machine", "Transport",
              "ucx_perftest", "ratio");
  std::printf("|---|---|---|---|\n");
  PrintRow("round trip push -> params, 4 KiB each way", "us", round_trips, perftest_round_trips,
           false);
  for (int i = 0; i < 3; ++i) PrintRow(goodputs[i].what, "GB/s", rates[i], perftest_rates[i], true);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  absl::SetProgramUsageMessage(
      "Measures the Transport interface between two processes against ucx_perftest.");
  absl::ParseCommandLine(argc, argv);
  if (absl::GetFlag(FLAGS_role) == "server") {
    muster::Server().Serve();
  } else {
    for (bool spin : {true, false}) muster::Measure(spin);
  }
  return 0;
}
