#include "lib/transport/tcp/tls_stream.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/session/session.h"

namespace muster::tls_stream_test {
namespace {

using Progress = TlsStream::Progress;

struct Wire {
  Wire() {
    std::array<int, 2> ends;
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    end = FileDescriptor(ends[0]);
    middle = FileDescriptor(ends[1]);
  }
  FileDescriptor end, middle;
  std::string overheard;  // bytes that passed from `end`
};

// Returns the sizes of the texts in TLS 1.3 records of AES-GCM.
std::vector<int> TextSizes(absl::string_view records) {
  constexpr int kHeaderBytes = 5, kTypeBytes = 1, kTagBytes = 16;
  std::vector<int> sizes;
  while (!records.empty()) {
    const int high = static_cast<uint8_t>(records[3]), low = static_cast<uint8_t>(records[4]);
    sizes.push_back(high * 256 + low - kTypeBytes - kTagBytes);
    records.remove_prefix(kHeaderBytes + kTypeBytes + kTagBytes + sizes.back());
  }
  return sizes;
}

// Two ends, and between them an eavesdropper that may change the bytes.
class TlsStreamTest : public testing::Test {
 protected:
  static SessionToken::Proof KeyOf(int number) {
    SessionToken::Proof key;
    key.fill(static_cast<std::byte>(number));
    return key;
  }

  void Start(int connectors_key, int acceptors_key,
             int64_t records_per_key = TlsStream::kRecordsPerKey) {
    connector_ = std::make_unique<TlsStream>(TlsStream::Side::kConnector, KeyOf(connectors_key),
                                             left_.end.get(), records_per_key);
    acceptor_ = std::make_unique<TlsStream>(TlsStream::Side::kAcceptor, KeyOf(acceptors_key),
                                            right_.end.get(), records_per_key);
    for (int turn = 0; turn < 10; ++turn) {
      if (connected_ == Progress::kWantsRead) connected_ = connector_->Handshake();
      Pass(left_, right_);
      if (accepted_ == Progress::kWantsRead) accepted_ = acceptor_->Handshake();
      Pass(right_, left_);
    }
  }

  void Pass(Wire& from, const Wire& to, size_t change = SIZE_MAX, size_t most = 64 << 10) {
    std::array<char, 64 << 10> bytes;
    const ssize_t size = recv(from.middle.get(), bytes.data(), std::min(most, bytes.size()), 0);
    if (size <= 0) return;
    if (change < static_cast<size_t>(size)) bytes[change] ^= 1;
    from.overheard.append(bytes.data(), size);
    EXPECT_EQ(send(to.middle.get(), bytes.data(), size, MSG_NOSIGNAL), size);
  }

  static ssize_t Write(TlsStream& stream, std::vector<std::string> pieces) {
    std::vector<iovec> vectors;
    for (std::string& piece : pieces) vectors.push_back({piece.data(), piece.size()});
    return stream.Write(vectors);
  }

  static std::string Read(TlsStream& stream, size_t room) {
    std::string bytes(room, '\0');
    const iovec vectors[] = {{bytes.data(), room / 2}, {bytes.data() + room / 2, room - room / 2}};
    const ssize_t size = stream.Read(vectors);
    bytes.resize(std::max<ssize_t>(size, 0));
    return bytes;
  }

  Wire left_, right_;
  std::unique_ptr<TlsStream> connector_, acceptor_;
  Progress connected_ = Progress::kWantsRead, accepted_ = Progress::kWantsRead;
};

TEST_F(TlsStreamTest, WrittenBytesAreReadAtTheOtherEndOnly) {
  Start(7, 7);
  ASSERT_EQ(connected_, Progress::kDone) << connector_->fault();
  ASSERT_EQ(accepted_, Progress::kDone) << acceptor_->fault();
  const std::string header = "a header of a message", payload(50'000, 'p');
  EXPECT_EQ(Write(*connector_, {header, payload, header}), 50'000 + 2 * header.size());
  Pass(left_, right_);
  EXPECT_EQ(Read(*acceptor_, 100'000), header + payload + header);
  EXPECT_EQ(Write(*acceptor_, {header}), header.size());
  Pass(right_, left_);
  EXPECT_EQ(Read(*connector_, 10), header.substr(0, 10));
  EXPECT_EQ(Read(*connector_, 100), header.substr(10));
  for (const Wire* wire : {&left_, &right_}) {
    EXPECT_FALSE(absl::StrContains(wire->overheard, "header"));
    EXPECT_FALSE(absl::StrContains(wire->overheard, "pppp"));
  }
}

TEST_F(TlsStreamTest, RecordsInTheSocketAreFetchedAtOnce) {
  Start(7, 7);
  const std::string text(60'000, 't');
  ASSERT_EQ(Write(*connector_, {text}), text.size());
  Pass(left_, right_);
  EXPECT_EQ(Read(*acceptor_, 2), "tt");
  int left = -1;
  ASSERT_EQ(ioctl(right_.end.get(), FIONREAD, &left), 0);
  EXPECT_EQ(left, 0);
  EXPECT_EQ(Read(*acceptor_, 100'000).size(), text.size() - 2);
}

TEST_F(TlsStreamTest, RecordsMayArriveInAnyPieces) {
  Start(7, 7);
  std::string text(60'000, ' '), read;
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 5);
  ASSERT_EQ(Write(*connector_, {text}), text.size());
  for (size_t size = 1; size < 400; ++size) {
    Pass(left_, right_, /*change=*/SIZE_MAX, /*most=*/size);
    read += Read(*acceptor_, 100'000);
    ASSERT_FALSE(acceptor_->ended());
  }
  EXPECT_EQ(read, text);
}

TEST_F(TlsStreamTest, AnEmptySocketMeansTryAgainAndAClosedOneTheEnd) {
  Start(7, 7);
  std::array<char, 10> bytes;
  const iovec room = {bytes.data(), bytes.size()};
  EXPECT_EQ(acceptor_->Read({&room, 1}), -1);
  EXPECT_EQ(errno, EAGAIN);
  right_.middle = FileDescriptor();
  EXPECT_EQ(acceptor_->Read({&room, 1}), 0);
  EXPECT_EQ(Write(*acceptor_, {"x"}), -1);
  EXPECT_EQ(errno, EPIPE);
}

// The rest of a record that a full socket did not take is offered again, with more bytes behind it.
TEST_F(TlsStreamTest, BytesThatAFullSocketDidNotTakeAreWrittenLater) {
  Start(7, 7);
  std::string text(4 << 20, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 5);
  size_t written = 0;
  std::string read;
  for (int turn = 0; turn < 1000 && read.size() < text.size(); ++turn) {
    const size_t middle = std::min(text.size(), written + 100);
    const ssize_t size =
        written == text.size()
            ? 0
            : Write(*connector_, {text.substr(written, middle - written), text.substr(middle)});
    if (size < 0) {
      ASSERT_EQ(errno, EAGAIN);
    } else {
      written += size;
    }
    Pass(left_, right_);
    read += Read(*acceptor_, 100'000);
    ASSERT_EQ(text.compare(0, read.size(), read), 0);
  }
  EXPECT_EQ(read.size(), text.size());
}

// A key update has a text of 5 bytes, which no other record in this test has.
TEST_F(TlsStreamTest, EachEndChangesItsKeyInTimeEvenIfTheSocketIsFull) {
  constexpr int kRecordsPerKey = 4, kKeyUpdateBytes = 5;
  Start(7, 7, kRecordsPerKey);
  left_.overheard.clear();
  right_.overheard.clear();
  std::string text(4 << 20, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 5);
  struct Way {
    TlsStream &from, &to;
    size_t written = 0;
    bool was_full = false;
    std::string read = {};
  };
  std::array<Way, 2> ways = {Way{*connector_, *acceptor_}, Way{*acceptor_, *connector_}};
  const auto arrived = [&](const Way& way) { return way.read.size() == text.size(); };
  for (int turn = 0; turn < 1000 && !(arrived(ways[0]) && arrived(ways[1])); ++turn) {
    for (Way& way : ways) {
      if (way.written == text.size()) continue;
      const ssize_t size = Write(way.from, {text.substr(way.written)});
      ASSERT_TRUE(size > 0 || errno == EAGAIN);
      way.was_full |= size < 0;
      way.written += std::max<ssize_t>(size, 0);
    }
    Pass(left_, right_);
    Pass(right_, left_);
    for (Way& way : ways) {
      way.read += Read(way.to, 100'000);
      ASSERT_FALSE(way.to.ended());
      ASSERT_EQ(text.compare(0, way.read.size(), way.read), 0);
    }
  }
  for (const Way& way : ways) {
    EXPECT_TRUE(arrived(way));
    EXPECT_TRUE(way.was_full);
  }
  for (const Wire* wire : {&left_, &right_}) {
    int records = 0, updates = 0;
    for (const int size : TextSizes(wire->overheard)) {
      if (size == kKeyUpdateBytes) {
        EXPECT_EQ(records, kRecordsPerKey);
        ++updates;
        records = 0;
      } else {
        EXPECT_LE(++records, kRecordsPerKey);
      }
    }
    EXPECT_GE(updates, (4 << 20) / (16 << 10) / kRecordsPerKey - 1);
  }
}

TEST_F(TlsStreamTest, ADifferentKeyEndsTheHandshake) {
  Start(7, 8);
  EXPECT_NE(connected_, Progress::kDone);
  EXPECT_EQ(accepted_, Progress::kFailed);
  EXPECT_FALSE(acceptor_->fault().empty());
}

TEST_F(TlsStreamTest, AChangedByteIsNotRead) {
  Start(7, 7);
  Write(*connector_, {"a message"});
  Pass(left_, right_, /*change=*/8);
  std::array<char, 10> bytes;
  const iovec room = {bytes.data(), bytes.size()};
  EXPECT_EQ(acceptor_->Read({&room, 1}), -1);
  EXPECT_EQ(errno, EBADMSG);
  EXPECT_TRUE(acceptor_->damaged());

  Pass(right_, left_);
  EXPECT_EQ(connector_->Read({&room, 1}), -1) << "the alert ends reading";
  EXPECT_EQ(errno, EBADMSG);
  EXPECT_FALSE(connector_->damaged()) << "the bytes it read were good";
}

// The third and fourth byte of a record are the length of the rest.
TEST_F(TlsStreamTest, ARecordWithAChangedLengthStaysUnfinishedUntilThatManyBytesArrive) {
  Start(7, 7);
  Write(*connector_, {"a message"});
  Pass(left_, right_);
  EXPECT_EQ(Read(*acceptor_, 100), "a message");
  EXPECT_EQ(acceptor_->UnfinishedRecord(), std::nullopt);
  Write(*connector_, {"another"});
  Pass(left_, right_, /*change=*/3);
  EXPECT_EQ(Read(*acceptor_, 100), "");
  EXPECT_FALSE(acceptor_->ended());
  EXPECT_EQ(acceptor_->UnfinishedRecord(), 9);
  Write(*connector_, {std::string(300, 'n')});
  Pass(left_, right_);
  EXPECT_EQ(Read(*acceptor_, 1000), "");
  EXPECT_TRUE(acceptor_->ended());
}

TEST_F(TlsStreamTest, BytesBeforeAChangedByteAreReadAndTheErrorIsRemembered) {
  Start(7, 7);
  Write(*connector_, {"a message"});
  Pass(left_, right_);
  Write(*connector_, {"another"});
  Pass(left_, right_, /*change=*/8);
  EXPECT_EQ(Read(*acceptor_, 100), "a message");
  EXPECT_TRUE(acceptor_->ended()) << "no further event would announce the end";
  std::array<char, 10> bytes;
  const iovec room = {bytes.data(), bytes.size()};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(acceptor_->Read({&room, 1}), -1);
    EXPECT_EQ(errno, EBADMSG);
  }
}

TEST_F(TlsStreamTest, AnEmptySocketIsNotTheEnd) {
  Start(7, 7);
  Write(*connector_, {"a message"});
  Pass(left_, right_);
  EXPECT_EQ(Read(*acceptor_, 100), "a message");
  EXPECT_FALSE(acceptor_->ended());
  Write(*connector_, {"another"});
  Pass(left_, right_);
  EXPECT_EQ(Read(*acceptor_, 100), "another");
}

}  // namespace
}  // namespace muster::tls_stream_test
