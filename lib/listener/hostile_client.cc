#include "lib/listener/hostile_client.h"

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/listener/http2_frame.h"

namespace muster {
namespace {

constexpr int kCallsAtOnce = 64;
constexpr int kSlowConnections = 32;
constexpr int kUnreadCalls = 384;     // the coordinator's limit for a connection
constexpr uint8_t kAcknowledges = 1;  // a flag of pings and settings
// The pause between two bytes of a slow client, and between looks at held connections.
constexpr int kPauseMs = 20;
constexpr absl::Duration kTurn = absl::Milliseconds(300);
constexpr size_t kOversizedBytes = 8 << 20;
constexpr char kWriteShard[] = "/muster.v1.MemberService/WriteShard";

void AddFrame(uint8_t type, uint8_t flags, uint32_t stream, absl::string_view payload,
              std::string& bytes) {
  Http2Frame{.payload_bytes = payload.size(), .type = type, .flags = flags, .stream = stream}
      .AppendTo(bytes);
  bytes.append(payload.data(), payload.size());
}

std::string Greeting() {
  std::string bytes(Http2Frame::kPreface);
  AddFrame(Http2Frame::kSettings, 0, 0, "", bytes);
  return bytes;
}

// Header fields of a call in HPACK, with indices of its static table if there is one.
std::string FieldsOf(absl::string_view path) {
  auto text = [](absl::string_view value) {
    return absl::StrCat(std::string(1, static_cast<char>(value.size())), value);
  };
  return absl::StrCat("\x83\x86", "\x04", text(path), "\x01", text("x"), std::string(1, 0),
                      text("te"), text("trailers"), "\x0f\x10", text("application/grpc"));
}

}  // namespace

absl::string_view HostileClient::NameOf(Attack attack) {
  switch (attack) {
    case Attack::kResetCalls:
      return "calls that are reset";
    case Attack::kDeafness:
      return "calls of a client that never reads";
    case Attack::kNoWindow:
      return "answers that are not read";
    case Attack::kCancelStreams:
      return "cancelled streams";
    case Attack::kCancelCalls:
      return "cancelled calls";
    case Attack::kHalfOpen:
      return "half-open connections";
    case Attack::kSlowHeaders:
      return "slow headers";
    case Attack::kOversized:
      return "oversized messages";
    case Attack::kPings:
      return "floods of pings";
    case Attack::kControlFrames:
      return "floods of control frames";
    case Attack::kGarbage:
      return "garbage";
  }
  return "";
}

HostileClient::HostileClient(Options options)
    : options_(std::move(options)), attack_(options_.attacks.front()), thread_([this] { Run(); }) {}

HostileClient::~HostileClient() {
  stopping_ = true;
  thread_.join();
}

int64_t HostileClient::strokes() const {
  return std::accumulate(strokes_.begin(), strokes_.end(), int64_t{0});
}

void HostileClient::Run() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 10);  // the test itself has priority
  for (size_t turn = 0; !stopping_; ++turn) {
    attack_ = options_.attacks[turn % options_.attacks.size()];
    turn_end_ = options_.attacks.size() > 1 ? SteadyNow() + kTurn : absl::InfiniteDuration();
    while (!turn_is_over()) Make(attack_);
  }
}

void HostileClient::Make(Attack attack) {
  switch (attack) {
    case Attack::kResetCalls:
      return CallByHand("/muster.v1.MemberService/Attach", /*reset=*/true);
    case Attack::kDeafness:
      return CallByHand(kWriteShard, /*reset=*/false);
    case Attack::kNoWindow:
      return LeaveAnswersUnread();
    case Attack::kCancelStreams:
      return OpenAndCancel({"/muster.v1.MemberService/Attach", "/muster.v1.JobService/WatchJob"});
    case Attack::kCancelCalls:
      return OpenAndCancel(
          {kWriteShard, "/muster.v1.MemberService/ReadShard", "/muster.v1.JobService/CreateJob"});
    case Attack::kHalfOpen:
      return HoldHalfOpen();
    case Attack::kSlowHeaders:
      return SayHeadersSlowly();
    case Attack::kOversized:
      SendOversizedByHand();
      return SendOversized();
    case Attack::kPings:
      return FloodWithPings();
    case Attack::kControlFrames:
      return FloodWithControlFrames();
    case Attack::kGarbage:
      return SayGarbage();
  }
}

bool HostileClient::turn_is_over() const { return stopping_ || SteadyNow() > turn_end_; }

int HostileClient::Connect() {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(options_.address.substr(options_.address.rfind(':') + 1), &port))
      << options_.address;
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in from{.sin_family = AF_INET};
  EXPECT_EQ(inet_pton(AF_INET, options_.source.c_str(), &from.sin_addr), 1) << options_.source;
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;  // connect() chooses the port: bind() would find fewer
  setsockopt(connection, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
  EXPECT_EQ(bind(connection, reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
  const timeval patience = {.tv_usec = 200'000};
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (connect(connection, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return connection;
  close(connection);
  poll(nullptr, 0, kPauseMs);  // too many connections have come already
  return -1;
}

bool HostileClient::Say(int connection, const std::string& bytes) {
  for (size_t said = 0; said < bytes.size() && !turn_is_over();) {
    const ssize_t some = send(connection, bytes.data() + said, bytes.size() - said, MSG_NOSIGNAL);
    if (some < 0 && errno != EAGAIN && errno != EINTR) return false;
    said += static_cast<size_t>(std::max<ssize_t>(some, 0));
  }
  return true;
}

void HostileClient::CallByHand(absl::string_view path, bool reset) {
  const int connection = Connect();
  if (connection < 0) return;
  const std::string fields = FieldsOf(path);
  std::string bytes = Greeting();
  uint32_t stream = 1;
  while (Say(connection, bytes) && !turn_is_over()) {
    bytes.clear();
    for (int i = 0; i < kCallsAtOnce; ++i, stream += 2, Strike()) {
      AddFrame(Http2Frame::kHeaders, Http2Frame::kEndHeaders, stream, fields, bytes);
      if (reset) AddFrame(Http2Frame::kReset, 0, stream, {"\0\0\0\x08", 4}, bytes);
    }
  }
  close(connection);
}

// Opens as many calls as a connection may have, and another one for each that the server ends.
void HostileClient::LeaveAnswersUnread() {
  const int connection = Connect();
  if (connection < 0) return;
  const std::string fields = FieldsOf("/muster.v1.JobService/GetServerInfo");
  std::string bytes(Http2Frame::kPreface), heard;
  AddFrame(Http2Frame::kSettings, 0, 0, {"\0\x04\0\0\0\0", 6}, bytes);  // windows of zero bytes
  int open = 0;
  for (uint32_t stream = 1; Say(connection, bytes) && !turn_is_over();) {
    bytes.clear();
    for (; open < kUnreadCalls; ++open, stream += 2, Strike()) {
      AddFrame(Http2Frame::kHeaders, Http2Frame::kEndHeaders, stream, fields, bytes);
      AddFrame(Http2Frame::kData, Http2Frame::kEndStream, stream, {"\0\0\0\0\0", 5}, bytes);
    }
    pollfd readable = {.fd = connection, .events = POLLIN};
    if (poll(&readable, 1, kPauseMs) <= 0) continue;
    char some[4096];
    const ssize_t came = recv(connection, some, sizeof(some), MSG_DONTWAIT);
    if (came <= 0) break;
    heard.append(some, static_cast<size_t>(came));
    while (heard.size() >= Http2Frame::kHeaderBytes) {
      const Http2Frame frame = Http2Frame::Read(heard.data());
      const size_t size = Http2Frame::kHeaderBytes + frame.payload_bytes;
      if (heard.size() < size) break;
      const bool is_question =
          frame.type == Http2Frame::kPing || frame.type == Http2Frame::kSettings;
      if (is_question && (frame.flags & kAcknowledges) == 0) {
        const bool is_ping = frame.type == Http2Frame::kPing;
        AddFrame(frame.type, kAcknowledges, 0,
                 is_ping ? heard.substr(Http2Frame::kHeaderBytes, frame.payload_bytes) : "", bytes);
      }
      const bool ends = !is_question && (frame.flags & Http2Frame::kEndStream) != 0;
      if (frame.type == Http2Frame::kReset || ends) --open;
      heard.erase(0, size);
    }
  }
  close(connection);
}

void HostileClient::OpenAndCancel(const std::vector<std::string>& methods) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a separate connection
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments));
  grpc::CompletionQueue queue;
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
    grpc::Status status;
  };
  void* tag = nullptr;
  bool ok = false;
  while (!turn_is_over()) {
    std::deque<Call> calls(kCallsAtOnce);
    for (size_t i = 0; i < calls.size(); ++i, Strike()) {
      calls[i].stream = stub.PrepareCall(&calls[i].context, methods[i % methods.size()], &queue);
      calls[i].stream->StartCall(nullptr);
    }
    const auto soon = std::chrono::system_clock::now() + std::chrono::milliseconds(20);
    int pending = kCallsAtOnce;
    while (pending > 0 && queue.AsyncNext(&tag, &ok, soon) == grpc::CompletionQueue::GOT_EVENT) {
      --pending;
    }
    for (Call& call : calls) {
      call.context.TryCancel();
      call.stream->Finish(&call.status, nullptr);
      ++pending;
    }
    for (; pending > 0; --pending) queue.Next(&tag, &ok);
  }
}

// Holds connections that send nothing or only their greeting. Connects again if the port hangs up.
void HostileClient::HoldHalfOpen() {
  std::vector<pollfd> held;
  while (!turn_is_over()) {
    while (std::ssize(held) < options_.held_connections && !turn_is_over()) {
      const int connection = Connect();
      if (connection < 0) break;
      if (held.size() % 2 == 0) Say(connection, Greeting());
      held.push_back({.fd = connection, .events = POLLIN});
      Strike();
    }
    if (poll(held.data(), held.size(), kPauseMs) == 0) continue;
    std::erase_if(held, [](const pollfd& one) {
      char heard[1024];
      if (one.revents == 0 || recv(one.fd, heard, sizeof(heard), MSG_DONTWAIT) > 0) return false;
      close(one.fd);
      return true;
    });
  }
  for (const pollfd& one : held) close(one.fd);
}

void HostileClient::SayHeadersSlowly() {
  std::string fields = Greeting();
  AddFrame(Http2Frame::kHeaders, 0, 1, FieldsOf(kWriteShard), fields);  // not the end of the fields
  for (int i = 0; i < 64; ++i) AddFrame(Http2Frame::kContinuation, 0, 1, "\x40", fields);
  const std::array<std::string, 3> sayings = {
      fields, Greeting(),
      absl::StrCat("GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ", std::string(1000, 'x'))};
  struct Slow {
    int connection;
    absl::string_view left;
  };
  std::vector<Slow> all;
  size_t came = 0;
  while (!turn_is_over()) {
    while (std::ssize(all) < kSlowConnections && !turn_is_over()) {
      const int connection = Connect();
      if (connection < 0) break;
      all.push_back({connection, sayings[came++ % sayings.size()]});
      Strike();
    }
    poll(nullptr, 0, kPauseMs);
    std::erase_if(all, [&](Slow& slow) {
      // A connection with slow header fields sends its greeting at once.
      const size_t bytes = slow.left.size() == fields.size() ? Greeting().size() + 20 : 1;
      if (!slow.left.empty() && Say(slow.connection, std::string(slow.left.substr(0, bytes)))) {
        slow.left.remove_prefix(std::min(bytes, slow.left.size()));
        return false;
      }
      close(slow.connection);
      return true;
    });
  }
  for (const Slow& slow : all) close(slow.connection);
}

// Announces a message of 4 GiB and sends kOversizedBytes of it, whatever window the peer has
// announced.
void HostileClient::SendOversizedByHand() {
  const int connection = Connect();
  if (connection < 0) return;
  std::string bytes = Greeting();
  AddFrame(Http2Frame::kHeaders, Http2Frame::kEndHeaders, 1, FieldsOf(kWriteShard), bytes);
  AddFrame(Http2Frame::kData, 0, 1, {"\0\xff\xff\xff\xff", 5}, bytes);  // a message of 4 GiB
  const std::string piece(Http2Frame::kPayloadBytesMin, 'x');
  for (size_t sent = 0; sent < kOversizedBytes && Say(connection, bytes) && !turn_is_over();
       sent += piece.size()) {
    bytes.clear();
    AddFrame(Http2Frame::kData, 0, 1, piece, bytes);
  }
  Strike();
  close(connection);
}

void HostileClient::SendOversized() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  grpc::GenericStub stub(
      grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/muster.v1.JobService/CreateJob", &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  if (ok) {
    const grpc::Slice message(std::string(kOversizedBytes, 'x'));
    call->WriteLast(grpc::ByteBuffer(&message, 1), grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  Strike();
}

// Sends `bytes` first, then `more` without end.
void HostileClient::Flood(std::string bytes, const std::string& more) {
  const int connection = Connect();
  if (connection < 0) return;
  while (Say(connection, bytes) && !turn_is_over()) {
    bytes = more;
    Strike();
  }
  close(connection);
}

void HostileClient::FloodWithPings() {
  std::string pings;
  for (int i = 0; i < 512; ++i) AddFrame(Http2Frame::kPing, 0, 0, "12345678", pings);
  Flood(Greeting(), pings);
}

void HostileClient::FloodWithControlFrames() {
  std::string call = Greeting();
  AddFrame(Http2Frame::kHeaders, Http2Frame::kEndHeaders, 1, FieldsOf(kWriteShard), call);
  std::string frames;
  for (int i = 0; i < 128; ++i) {
    AddFrame(Http2Frame::kSettings, 0, 0, {"\0\x03\0\0\0\x64", 6}, frames);
    AddFrame(Http2Frame::kPriority, 0, 3, {"\0\0\0\0\x10", 5}, frames);
    AddFrame(Http2Frame::kWindowUpdate, 0, 0, {"\0\0\0\x01", 4}, frames);
    AddFrame(Http2Frame::kData, 0, 1, "", frames);
  }
  Flood(std::move(call), frames);
}

void HostileClient::SayGarbage() {
  const int connection = Connect();
  if (connection < 0) return;
  std::string random(1 + random_() % 512, '\0');
  for (char& byte : random) byte = static_cast<char>(random_());
  const std::array<std::string, 6> sayings = {
      random,
      std::string(Http2Frame::kPreface) + random,
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      "POST /muster.v1.JobService/CreateJob HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
      std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + random,  // TLS
      "EHLO x\r\n"};
  Say(connection, sayings[random_() % sayings.size()]);
  Strike();
  // Half of the connections, chosen at random, wait for the answer.
  if (char heard; random_() % 2 == 0) recv(connection, &heard, 1, 0);
  close(connection);
}

}  // namespace muster
