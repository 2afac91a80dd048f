// Two transports with a faulty stretch of TCP between them. A flipped bit, wherever it is, is
// detected or changes no delivered message. Streams that are cut, reset or delayed are tested too.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/data_port.h"
#include "lib/transport/tcp/tcp_address.h"
#include "lib/transport/tcp/tcp_transport.h"
#include "lib/transport/testing/faulty_relay.h"
#include "lib/transport/testing/postbox.h"

namespace muster::tcp_faults_test {
namespace {

using Direction = RelayFault::Direction;
using Kind = RelayFault::Kind;

constexpr uint32_t kSeed = 20261125;
constexpr int kOtherFaults = 30;  // of each kind and each security

// Returns the number of bit flips to test, on plain and encrypted links together. Encrypted links
// get a third. docs/testing.md tells how to run more.
int Flips() {
  const char* const wanted = std::getenv("FLIPS");
  return wanted != nullptr ? std::atoi(wanted) : 200;
}

// The sizes of the messages in each direction, in order: a header alone, small payloads, and
// payloads that are read directly into their memory. No bytes follow the last message in its
// stream.
constexpr std::array<size_t, 8> kSizes = {0, 1, 1000, 0, 20'000, 64, 70'000, 0};
constexpr size_t kHandshakeThere = SessionHandshake::kHelloBytes + SessionHandshake::kProofBytes;
constexpr size_t kHandshakeBack =
    SessionHandshake::kChallengeBytes + SessionHandshake::kVerdictBytes;
constexpr size_t kChecksumBytes = 4;
// Parts of an encrypted stream: TLS's handshake and the records of the first messages; the header
// and the whole of the last record, which is the last message.
constexpr int64_t kTlsBegin = 1500;
constexpr int64_t kTlsHeader = 5, kTlsLastRecord = kTlsHeader + WireHeader::kBytes + 1 + 16;

std::shared_ptr<DataPort> OpenPort(DataSecurity security) {
  // Checksums are on as between hosts: links within one host have none by default.
  const Checksums checksums =
      security == DataSecurity::kEncrypt ? Checksums::kAuto : Checksums::kOn;
  auto port =
      DataPort::Open({.bind_host = "127.0.0.1", .security = security, .checksums = checksums});
  EXPECT_TRUE(port.ok()) << port.status();
  return *std::move(port);
}

// Returns the options for a session with this fault. A flip may change a length, which only a time
// limit detects, so the limits are shorter than usual.
TcpTransportOptions OptionsFor(std::shared_ptr<DataPort> port, Kind fault) {
  TcpTransportOptions options{.port = std::move(port)};
  if (fault != Kind::kFlip) return options;
  options.attempt_time_max = std::chrono::seconds(1);
  options.record_time_max = std::chrono::milliseconds(200);
  return options;
}

// One end: sends every message once and checks the messages that arrive.
class Station {
 public:
  Station(const TcpTransportOptions& options, uint32_t first_chunk) : first_chunk_(first_chunk) {
    auto loop = EventLoop::Create();
    EXPECT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    auto transport = TcpTransport::Create(loop_.get(), options);
    EXPECT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
    transport_->SetReceiver(&postbox);
    OpenTestSession(*transport_);
    for (size_t i = 0; i < kSizes.size(); ++i) {
      payloads_.push_back(PatternOf(first_chunk_ + i, kSizes[i]));
    }
  }

  // Sends the messages that are due. The last one is due when all messages except the other end's
  // last have arrived.
  void Send(PeerId peer) {
    const size_t due = kSizes.size() - (postbox.messages.size() < kSizes.size() - 1 ? 1 : 0);
    for (; sent_ < due && !lost(); ++sent_) {
      transport_->Send(peer, HeaderOf(first_chunk_ + sent_, kSizes[sent_]), payloads_[sent_],
                       [this](const absl::Status&) { ++dones_; });
    }
  }

  bool sends_have_ended() const { return dones_ == sent_; }
  bool lost() const { return !postbox.losses.empty(); }
  bool has_all() const { return postbox.messages.size() >= kSizes.size(); }

  // Checks that every message that arrived was sent by `other`, has no changed bit, and arrived
  // once.
  void ExpectOnlyWhatWasSentBy(const Station& other) const {
    std::vector<int> seen(kSizes.size());
    for (const Postbox::Message& message : postbox.messages) {
      const size_t i = message.header.chunk - other.first_chunk_;
      ASSERT_LT(i, kSizes.size());
      EXPECT_EQ(message.header, HeaderOf(other.first_chunk_ + i, kSizes[i]));
      EXPECT_EQ(++seen[i], 1) << "message " << i;
      ASSERT_EQ(message.payload.size(), kSizes[i]);
      EXPECT_TRUE(kSizes[i] == 0 ||
                  std::memcmp(message.payload.data(), other.payloads_[i].data(), kSizes[i]) == 0)
          << "message " << i << " is another";
    }
    EXPECT_LE(postbox.losses.size(), 1u);
    for (const auto& [peer, why] : postbox.losses) {
      EXPECT_FALSE(why.ok());
      EXPECT_FALSE(why.message().empty());
    }
  }

  TcpTransport& transport() { return *transport_; }

  Postbox postbox;  // must outlive the transport

 private:
  const uint32_t first_chunk_;
  std::vector<std::vector<std::byte>> payloads_;
  size_t sent_ = 0, dones_ = 0;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<TcpTransport> transport_;
};

// The address of `station` for peers that connect through the relay.
std::string AddressThrough(const FaultyRelay& relay, Station& station) {
  auto address = DecodeTcpAddress(station.transport().address());
  EXPECT_TRUE(address.ok()) << address.status();
  address->endpoints = {{.host = "127.0.0.1", .port = relay.port()}};
  return EncodeTcpAddress(*address);
}

// The outcome if the session ended before the place of the fault. Timing decides how messages share
// encrypted records, so one session may be shorter than another.
constexpr char kNotReached[] = "the session was over before";

// Returns the check that detected the fault, or "harmless".
std::string NoticedBy(const Station& connector, const Station& acceptor) {
  absl::Status why;
  for (const Station* station : {&connector, &acceptor}) {
    if (!station->lost()) continue;
    const absl::Status& told = station->postbox.losses[0].second;
    // The other end only sees that the connection was closed.
    const bool says_more = !absl::IsUnavailable(told) || absl::StrContains(told.message(), "TLS") ||
                           absl::StrContains(told.message(), "Bad message") ||
                           absl::StrContains(told.message(), "no answer in time") ||
                           absl::StrContains(told.message(), "unfinished");
    if (why.ok() || says_more) why = told;
  }
  const auto says = [&why](const char* text) { return absl::StrContains(why.message(), text); };
  if (why.ok()) return "harmless";
  if (absl::IsPermissionDenied(why)) return "a proof of the handshake";
  if (absl::IsFailedPrecondition(why)) return "version or security in the handshake";
  if (says("data port there")) return "another field of the handshake";
  if (says("no Muster data port")) return "another field of the handshake";
  if (says("wire header: checksum")) return "the checksum of a header";
  if (says("wire header")) return "another field of a header";
  if (absl::IsDataLoss(why)) return "the checksum of a payload";
  if (says("unfinished")) return "a record without an end";
  if (says("TLS") || says("Bad message")) return "TLS";
  if (says("no answer in time")) return "no answer in time";
  return "the end of the connection";
}

struct Stretch {
  int64_t begin, size;
};

// The positions of the messages of kSizes in a plain stream that starts with `begin` handshake
// bytes.
enum class Part : uint8_t { kHandshake, kHeader, kPayload, kChecksum };
std::vector<Stretch> StretchesOf(Part part, int64_t begin) {
  if (part == Part::kHandshake) return {{0, begin}};
  std::vector<Stretch> stretches;
  for (const auto size : kSizes) {
    const auto payload = static_cast<int64_t>(size);
    if (part == Part::kHeader) stretches.push_back({begin, WireHeader::kBytes});
    begin += WireHeader::kBytes;
    if (payload == 0) continue;
    if (part == Part::kPayload) stretches.push_back({begin, payload});
    begin += payload;
    if (part == Part::kChecksum) stretches.push_back({begin, kChecksumBytes});
    begin += kChecksumBytes;
  }
  return stretches;
}

class TcpFaultsTest : public ::testing::TestWithParam<DataSecurity> {
 protected:
  // Runs a session with this fault. At the end all messages have arrived, or both ends know that
  // the link is lost. Returns what detected the fault.
  std::string Run(const RelayFault& fault) {
    Station connector(OptionsFor(connecting_port_, fault.kind), /*first_chunk=*/100);
    Station acceptor(OptionsFor(accepting_port_, fault.kind), /*first_chunk=*/200);
    FaultyRelay relay(accepting_port_->port(), fault);
    const auto peer =
        connector.transport().Connect(AddressThrough(relay, acceptor), CredentialsOf(/*index=*/3));
    EXPECT_TRUE(peer.ok()) << peer.status();
    const auto is_over = [&] {
      connector.Send(*peer);
      if (!acceptor.postbox.joined.empty()) acceptor.Send(acceptor.postbox.joined[0].first);
      const bool all_is_there = connector.has_all() && acceptor.has_all();
      const bool is_lost = connector.lost() && (acceptor.postbox.joined.empty() || acceptor.lost());
      return (all_is_there || is_lost) && connector.sends_have_ended() &&
             acceptor.sends_have_ended();
    };
    EXPECT_TRUE(ProgressUntil({&connector.transport(), &acceptor.transport()}, is_over))
        << "something hangs: the connector has " << connector.postbox.messages.size() << " messages"
        << (connector.lost() ? ", lost" : "") << "; the acceptor "
        << acceptor.postbox.messages.size() << (acceptor.lost() ? ", lost" : "");
    connector.ExpectOnlyWhatWasSentBy(acceptor);
    acceptor.ExpectOnlyWhatWasSentBy(connector);
    EXPECT_LE(acceptor.postbox.joined.size(), 1u);
    const bool is_to_happen = fault.kind != Kind::kNone;
    if (is_to_happen && !relay.happened()) return kNotReached;
    if (fault.kind == Kind::kNone) {
      undisturbed_ = {relay.bytes(Direction::kThere), relay.bytes(Direction::kBack)};
    }
    return NoticedBy(connector, acceptor);
  }

  // Returns a random place in the stream of a session. Handshakes and small fields are as likely as
  // payloads, which are nearly all of the bytes.
  int64_t RandomPlace(Direction direction) {
    const bool there = direction == Direction::kThere;
    const auto handshake = static_cast<int64_t>(there ? kHandshakeThere : kHandshakeBack);
    Stretch stretch{};
    if (GetParam() == DataSecurity::kAuth) {
      const std::vector<Stretch> stretches = StretchesOf(Part(random_() % 4), handshake);
      stretch = stretches[random_() % stretches.size()];
    } else {
      const int64_t end = undisturbed_[static_cast<size_t>(direction)];
      const std::array<Stretch, 4> stretches = {{{0, handshake},
                                                 {handshake, kTlsBegin},
                                                 {handshake, end - handshake},
                                                 {end - kTlsLastRecord, kTlsHeader}}};
      stretch = stretches[random_() % stretches.size()];
    }
    return stretch.begin + static_cast<int64_t>(random_() % stretch.size);
  }

  // Returns how often each check detected a fault.
  std::map<std::string, int> RunAtRandomPlaces(Kind kind, int count) {
    EXPECT_EQ(Run({}), "harmless") << "a run without a fault, which also counts the bytes";
    std::map<std::string, int> noticed;
    for (int i = 0; i < count && !HasFailure(); ++i) {
      RelayFault fault{.kind = kind, .direction = Direction(random_() % 2)};
      fault.place = RandomPlace(fault.direction);
      fault.bit = static_cast<int>(random_() % 8);
      fault.delay = std::chrono::milliseconds(5);
      SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", fault ", i, ": bit ", fault.bit, " of byte ",
                                fault.place,
                                fault.direction == Direction::kThere ? " there" : " back"));
      ++noticed[Run(fault)];
    }
    for (const auto& [by, times] : noticed) std::cout << times << " times " << by << "\n";
    EXPECT_LE(noticed[kNotReached], GetParam() == DataSecurity::kEncrypt ? count / 10 : 0);
    return noticed;
  }

  std::mt19937 random_{kSeed};
  const std::shared_ptr<DataPort> connecting_port_ = OpenPort(GetParam());
  const std::shared_ptr<DataPort> accepting_port_ = OpenPort(GetParam());
  std::array<int64_t, 2> undisturbed_ = {};  // bytes of a session without a fault, by direction
};

TEST_P(TcpFaultsTest, ABitThatFlipsIsDetectedOrHarmless) {
  const bool plain = GetParam() == DataSecurity::kAuth;
  const int count = plain ? Flips() - Flips() / 3 : Flips() / 3;
  auto noticed = RunAtRandomPlaces(Kind::kFlip, count);
  EXPECT_GT(noticed["a proof of the handshake"], 0);
  if (plain) {
    EXPECT_GT(noticed["the checksum of a header"], 0);
    EXPECT_GT(noticed["the checksum of a payload"], 0);
  } else {
    EXPECT_GT(noticed["TLS"], 0);
  }
  // A flip is harmless only if it makes the port hang up silently: then the member tries again.
  EXPECT_LT(noticed["harmless"], count / 5);
}

TEST_P(TcpFaultsTest, ACutStreamIsDetectedOrConnectedAgain) {
  auto noticed = RunAtRandomPlaces(Kind::kCut, kOtherFaults);
  EXPECT_GT(noticed["the end of the connection"], 0);
}

TEST_P(TcpFaultsTest, AResetConnectionIsDetectedOrConnectedAgain) {
  auto noticed = RunAtRandomPlaces(Kind::kReset, kOtherFaults);
  EXPECT_GT(noticed["the end of the connection"], 0);
}

TEST_P(TcpFaultsTest, DelayedBytesArriveComplete) {
  auto noticed = RunAtRandomPlaces(Kind::kDelay, kOtherFaults);
  EXPECT_EQ(noticed["harmless"] + noticed[kNotReached], kOtherFaults);
}

INSTANTIATE_TEST_SUITE_P(Securities, TcpFaultsTest,
                         ::testing::Values(DataSecurity::kAuth, DataSecurity::kEncrypt),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace muster::tcp_faults_test
