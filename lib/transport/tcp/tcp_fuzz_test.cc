// The handshake reads bytes of unauthenticated peers; the frame reader reads bytes of members.
// For any bytes, each of the two:
// - accesses only its own memory and the placed memory (sanitizers watch both).
// - accepts no peer without a token.
// - returns messages or a fault.
//
// If built with -DMUSTER_LIBFUZZER and clang's -fsanitize=fuzzer, coverage guides the same checks.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/frame_reader.h"
#include "lib/transport/tcp/frame_writer.h"
#ifdef MUSTER_LIBFUZZER
#include <string>

#include "lib/transport/core/crc32c.h"
#include "tests/fuzz/fuzz_target.h"
#else
#include "gtest/gtest.h"
#include "lib/transport/testing/postbox.h"
#endif

namespace muster::tcp_fuzz_test {
namespace {

using Bytes = std::vector<std::byte>;

// Cuts bytes into pieces with sizes given by `random`.
class Pieces {
 public:
  Pieces(absl::Span<const std::byte> bytes, uint32_t seed) : bytes_(bytes), random_(seed) {}

  bool empty() const { return bytes_.empty(); }
  absl::Span<const std::byte> Next(size_t most) {
    const size_t wanted = random_() % 4 == 0 ? 1 + random_() % 100 : most;
    const size_t size = std::min({wanted, most, bytes_.size()});
    const auto piece = bytes_.first(size);
    bytes_.remove_prefix(size);
    return piece;
  }

 private:
  absl::Span<const std::byte> bytes_;
  std::mt19937 random_;
};

// Returns whether the handshake got as far as a proof that was not believed.
bool AcceptSafely(absl::Span<const std::byte> bytes, uint32_t seed,
                  DataSecurity security = DataSecurity::kAuth) {
  HandshakeAcceptor acceptor(security, /*checksums=*/seed % 2 == 0);
  Pieces pieces(bytes, seed);
  while (!pieces.empty() && acceptor.wants() > 0) {
    acceptor.Take(pieces.Next(acceptor.wants()), [](const LinkHello& hello) {
      return hello.who.job % 2 == 0 ? std::optional(SessionToken::Random()) : std::nullopt;
    });
    CHECK(!acceptor.proven()) << "accepted a peer without the token";
    CHECK_LE(acceptor.TakeReply().size(), SessionHandshake::kHelloBytes);
    CHECK(acceptor.fault().ok() || acceptor.wants() == 0);
    CHECK(acceptor.fault().ok() || !acceptor.fault().message().empty());
  }
  return absl::IsPermissionDenied(acceptor.fault());
}

bool ConnectSafely(absl::Span<const std::byte> bytes, uint32_t seed,
                   DataSecurity security = DataSecurity::kAuth) {
  HandshakeConnector connector({.checksums = seed % 2 == 0}, SessionToken::Random(), security);
  connector.TakeReply();
  Pieces pieces(bytes, seed);
  while (!pieces.empty() && connector.wants() > 0) {
    connector.Take(pieces.Next(connector.wants()));
    CHECK(!connector.let_in()) << "accepted by an acceptor without the token";
    CHECK(connector.TakeReply().empty()) << "sent a proof to an unauthenticated peer";
  }
  return absl::IsPermissionDenied(connector.fault());
}

struct Message {
  WireHeader header;
  Bytes payload;
};

// Reads the stream as the transport does, with separate memory for each payload. Returns the
// messages.
std::vector<Message> ReadSafely(absl::Span<const std::byte> bytes, uint32_t seed, bool checksums,
                                absl::Status* fault = nullptr) {
  constexpr uint64_t kPlacedMax = 1 << 20;
  FrameReader reader(checksums);
  Pieces pieces(bytes, seed);
  std::unique_ptr<std::byte[]> memory;
  std::vector<Message> messages;
  while (true) {
    switch (reader.Next()) {
      case FrameReader::Event::kMore: {
        if (pieces.empty()) return messages;
        std::array<iovec, 2> room;
        const int count = reader.Room(room);
        CHECK_GT(room[0].iov_len, 0u);
        size_t took = 0;
        for (int i = 0; i < count && !pieces.empty(); ++i) {
          const auto piece = pieces.Next(room[i].iov_len);
          std::memcpy(room[i].iov_base, piece.data(), piece.size());
          took += piece.size();
          if (piece.size() < room[i].iov_len) break;
        }
        reader.Took(took);
        break;
      }
      case FrameReader::Event::kHeader: {
        const uint64_t length = reader.header().length;
        const bool wanted = length <= kPlacedMax && reader.header().chunk % 8 != 7;
        memory = wanted ? std::make_unique<std::byte[]>(length) : nullptr;
        reader.Place({memory.get(), wanted ? length : 0});
        CHECK_EQ(reader.receiving(), wanted);
        break;
      }
      case FrameReader::Event::kMessage:
        CHECK_EQ(reader.payload().size(), reader.header().length);
        CHECK(!reader.receiving());
        messages.push_back(
            {reader.header(), Bytes(reader.payload().begin(), reader.payload().end())});
        break;
      case FrameReader::Event::kBroken:
        CHECK(!reader.fault().ok());
        CHECK(reader.Next() == FrameReader::Event::kBroken);
        if (fault != nullptr) *fault = reader.fault();
        return messages;
    }
  }
}

// The bytes of both ends of a successful handshake.
struct Handshake {
  Bytes said, answered;
};
Handshake RecordHandshake(DataSecurity security) {
  const SessionToken token = SessionToken::Random();
  HandshakeConnector connector({.who = {.job = 2}}, token, security);
  HandshakeAcceptor acceptor(security, false);
  const auto find = [&token](const LinkHello&) { return std::optional(token); };
  Handshake recorded;
  const auto record = [](Bytes& to, absl::Span<const std::byte> bytes) {
    to.insert(to.end(), bytes.begin(), bytes.end());
    return Bytes(bytes.begin(), bytes.end());
  };
  const Bytes hello = record(recorded.said, connector.TakeReply());
  acceptor.Take(absl::MakeConstSpan(hello).first(8), find);
  acceptor.Take(absl::MakeConstSpan(hello).subspan(8), find);
  const Bytes challenge = record(recorded.answered, acceptor.TakeReply());
  connector.Take(absl::MakeConstSpan(challenge).first(8));
  connector.Take(absl::MakeConstSpan(challenge).subspan(8));
  acceptor.Take(record(recorded.said, connector.TakeReply()), find);
  CHECK(acceptor.proven());
  acceptor.LetIn();
  record(recorded.answered, acceptor.TakeReply());
  return recorded;
}

#ifdef MUSTER_LIBFUZZER

// Fuzzers do not find correct checksums, so this computes them. Every frame gets a valid header,
// except for a field or two. Byte 9, which is 0 in a valid header, selects a fault by its value
// modulo 16:
// - 1, 5, 9 or 13: the header's checksum stays.
// - 2: the payload's checksum stays.
// - 3: as 1, and the payload may be longer than the remaining bytes.
void Repair(Bytes& stream, bool checksums) {
  const auto load = [](const std::byte* from) {
    uint64_t value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  };
  const auto store = [](std::byte* to, auto value) { std::memcpy(to, &value, sizeof(value)); };
  for (size_t at = 0; stream.size() - at >= WireHeader::kBytes;) {
    std::byte* header = stream.data() + at;
    const int faults = std::to_integer<int>(header[9]) % 16;  // none in most cases
    const size_t rest = stream.size() - at - WireHeader::kBytes;
    const uint64_t length = load(header + 40) % (faults == 3 ? 1 << 18 : rest + 1);
    store(header, WireHeader::kMagic);
    store(header + 4, WireHeader::kVersion);
    const auto limit = [&](int byte, int values) {
      header[byte] = static_cast<std::byte>(std::to_integer<int>(header[byte]) % values);
    };
    limit(6, 15);  // kind: 1 to 13
    limit(7, 5);   // dtype: 0 to 3
    limit(8, 6);   // codec: 0 to 4
    header[9] = std::byte{0};
    limit(10, 11);  // reason: 0 to 9
    header[11] = std::byte{0};
    store(header + 40, length);
    if (faults % 4 != 1 && faults != 3) store(header + 60, Crc32c({header, 60}));
    if (length > rest) return;
    at += WireHeader::kBytes + length;
    if (!checksums || length == 0) continue;
    if (stream.size() - at < sizeof(uint32_t)) return;
    if (faults != 2) {
      store(stream.data() + at, Crc32c({header + WireHeader::kBytes, static_cast<size_t>(length)}));
    }
    at += sizeof(uint32_t);
  }
}

// The first byte selects the reader of the rest, and its security or checksums. The second byte
// selects the sizes of the pieces.
enum Reader { kAcceptor, kConnector, kRawStream, kStream };

std::string Input(int reader, const Bytes& bytes) {
  std::string input = {static_cast<char>(reader), '\0'};
  return input.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool FuzzBytes(absl::string_view input) {
  if (input.size() < 2) return false;
  const auto how = static_cast<uint8_t>(input[0]);
  const auto seed = static_cast<uint8_t>(input[1]);
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(input.data()) + 2,
                                          input.size() - 2);
  const auto security = how / 4 % 2 == 0 ? DataSecurity::kAuth : DataSecurity::kEncrypt;
  const bool checksums = how / 4 % 2 == 1;
  switch (static_cast<Reader>(how % 4)) {
    case kAcceptor:
      return AcceptSafely(bytes, seed, security);
    case kConnector:
      return ConnectSafely(bytes, seed, security);
    case kRawStream:
      return !ReadSafely(bytes, seed, checksums).empty();
    case kStream:
      Bytes stream(bytes.begin(), bytes.end());
      Repair(stream, checksums);
      return !ReadSafely(stream, seed, checksums).empty();
  }
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const auto security : {DataSecurity::kAuth, DataSecurity::kEncrypt}) {
    const Handshake handshake = RecordHandshake(security);
    const int how = security == DataSecurity::kEncrypt ? 4 : 0;
    seeds.push_back(Input(kAcceptor + how, handshake.said));
    seeds.push_back(Input(kConnector + how, handshake.answered));
  }
  Bytes frames;
  for (const size_t payload : {0, 5, 0, 200, 7}) {
    const auto header = EncodeHeader(
        {.kind = MessageKind::kPush, .chunk = static_cast<uint32_t>(payload), .length = payload});
    frames.insert(frames.end(), header.begin(), header.end());
    frames.resize(frames.size() + payload);
    for (const bool checksums : {false, true}) {
      Bytes stream = frames;
      if (checksums && payload > 0) stream.resize(stream.size() + sizeof(uint32_t));
      seeds.push_back(Input(kStream + 4 * checksums, stream));
      Repair(stream, checksums);
      seeds.push_back(Input(kRawStream + 4 * checksums, stream));
    }
  }
  return seeds;
}

#else

Bytes RandomBytes(size_t size, std::mt19937& random) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

Bytes Mutated(Bytes bytes, std::mt19937& random) {
  for (int count = 1 + random() % 4; count > 0 && !bytes.empty(); --count) {
    std::byte& byte = bytes[random() % bytes.size()];
    switch (random() % 4) {
      case 0:
        byte ^= static_cast<std::byte>(1 << random() % 8);
        break;
      case 1:
        byte = static_cast<std::byte>(random());
        break;
      case 2:
        byte = bytes[random() % bytes.size()];
        break;
      case 3:
        bytes.resize(random() % (bytes.size() + 1));
        break;
    }
  }
  return bytes;
}

TEST(TcpFuzzTest, MutatedHandshakeRecordingsAreNeverAccepted) {
  std::mt19937 random(20261123);
  const auto [said, answered] = RecordHandshake(DataSecurity::kAuth);
  int accepted_far = 0, connected_far = 0;
  for (int i = 0; i < 20'000; ++i) {
    accepted_far += AcceptSafely(Mutated(said, random), random());
    connected_far += ConnectSafely(Mutated(answered, random), random());
  }
  EXPECT_GT(accepted_far, 1000);
  EXPECT_GT(connected_far, 1000);
}

TEST(TcpFuzzTest, RandomBytesAreNoHandshakeAndNoFrames) {
  std::mt19937 random(20261124);
  for (int i = 0; i < 20'000; ++i) {
    const Bytes bytes = RandomBytes(random() % 300, random);
    AcceptSafely(bytes, random());
    ConnectSafely(bytes, random());
    EXPECT_TRUE(ReadSafely(bytes, random(), i % 2 == 0).empty());
  }
}

// Messages of many sizes and their stream.
struct Stream {
  Stream(bool checksums, std::mt19937& random) : writer(checksums) {
    for (int count = 1 + random() % 20; count > 0; --count) {
      const size_t size = random() % 3 == 0   ? 0
                          : random() % 8 == 0 ? random() % 100'000
                                              : random() % 2000;
      OutgoingMessage& message = messages.emplace_back();
      payloads.push_back(RandomBytes(size, random));
      headers.push_back(HeaderOf(random() % 16, size));
      message.header = EncodeHeader(headers.back());
      message.payload = payloads.back();
      writer.Push(&message);
    }
    while (!writer.empty()) {
      std::array<iovec, FrameWriter::kPiecesMax> pieces;
      const int count = writer.Pieces(pieces);
      size_t left = random() % 30'000, wrote = 0;
      for (int i = 0; i < count; ++i) {
        const size_t size = std::min(left, pieces[i].iov_len);
        const auto* begin = static_cast<const std::byte*>(pieces[i].iov_base);
        bytes.insert(bytes.end(), begin, begin + size);
        left -= size;
        wrote += size;
      }
      writer.Wrote(wrote);
      while (writer.TakeGone() != nullptr) ++gone;
    }
  }

  FrameWriter writer;
  std::deque<OutgoingMessage> messages;
  std::deque<Bytes> payloads;
  std::vector<WireHeader> headers;
  Bytes bytes;
  size_t gone = 0;
};

TEST(TcpFuzzTest, AStreamWrittenInAnyPiecesIsReadInAnyOthers) {
  std::mt19937 random(20261125);
  for (int i = 0; i < 400; ++i) {
    const bool checksums = i % 2 == 0;
    const Stream stream(checksums, random);
    EXPECT_EQ(stream.gone, stream.messages.size());
    absl::Status fault;
    const std::vector<Message> read = ReadSafely(stream.bytes, random(), checksums, &fault);
    EXPECT_TRUE(fault.ok()) << fault;
    size_t next = 0;
    for (size_t sent = 0; sent < stream.headers.size(); ++sent) {
      if (stream.headers[sent].chunk % 8 == 7 && stream.headers[sent].length > 0) continue;
      ASSERT_LT(next, read.size());
      EXPECT_EQ(read[next].header, stream.headers[sent]);
      EXPECT_EQ(read[next].payload, stream.payloads[sent]);
      ++next;
    }
    EXPECT_EQ(next, read.size());
  }
}

TEST(TcpFuzzTest, MutatedStreamsGiveSentMessagesAndThenAFault) {
  std::mt19937 random(20261126);
  int faults = 0;
  for (int i = 0; i < 2000; ++i) {
    const Stream stream(/*checksums=*/true, random);
    absl::Status fault;
    const auto read =
        ReadSafely(Mutated(stream.bytes, random), random(), /*checksums=*/true, &fault);
    faults += !fault.ok();
    // Messages must be in order and must have been sent. A dropped payload may hide a change.
    size_t sent = 0;
    for (const Message& message : read) {
      while (sent < stream.headers.size() && stream.headers[sent] != message.header) ++sent;
      ASSERT_LT(sent, stream.headers.size()) << message.header.chunk;
      EXPECT_EQ(message.payload, stream.payloads[sent]);
      ++sent;
    }
  }
  EXPECT_GT(faults, 500);
}

#endif

}  // namespace
}  // namespace muster::tcp_fuzz_test

#ifdef MUSTER_LIBFUZZER
namespace muster {
bool FuzzOne(absl::string_view bytes) { return tcp_fuzz_test::FuzzBytes(bytes); }
std::vector<std::string> FuzzSeeds() { return tcp_fuzz_test::Seeds(); }
}  // namespace muster
#endif
