#include "lib/transport/session/session_handshake.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace muster::session_handshake_test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes Take(SessionHandshake& side) {
  const auto reply = side.TakeReply();
  return {reply.begin(), reply.end()};
}

class SessionHandshakeTest : public testing::Test {
 protected:
  std::optional<SessionToken> Find(const LinkHello& hello) const {
    if (hello.who.job != 7 || hello.transport != 3) return std::nullopt;
    return token_;
  }
  // Gives `bytes` to the acceptor until it wants no more of them.
  void Give(HandshakeAcceptor& acceptor, absl::Span<const std::byte> bytes) const {
    while (!bytes.empty() && acceptor.wants() > 0) {
      const size_t size = std::min(bytes.size(), acceptor.wants());
      acceptor.Take(bytes.first(size), [this](const LinkHello& hello) { return Find(hello); });
      bytes.remove_prefix(size);
    }
  }
  static void Give(HandshakeConnector& connector, absl::Span<const std::byte> bytes) {
    while (!bytes.empty() && connector.wants() > 0) {
      const size_t size = std::min(bytes.size(), connector.wants());
      connector.Take(bytes.first(size));
      bytes.remove_prefix(size);
    }
  }
  void Run(HandshakeConnector& connector, HandshakeAcceptor& acceptor) const {
    Give(acceptor, Take(connector));
    Give(connector, Take(acceptor));
    Give(acceptor, Take(connector));
    if (acceptor.proven()) acceptor.LetIn();
    Give(connector, Take(acceptor));
  }

  const SessionToken token_ = SessionToken::Random();
  const LinkHello hello_ = {
      .who = {.job = 7, .generation = 2, .role = LinkRole::kShard, .index = 11},
      .port = 0x123456789abcdef0,
      .transport = 3,
      .link = {std::byte{1}, std::byte{2}},
      .connection = 4,
  };
};

TEST_F(SessionHandshakeTest, AMemberThatKnowsTheTokenIsLetIn) {
  for (DataSecurity security : {DataSecurity::kAuth, DataSecurity::kEncrypt, DataSecurity::kNone}) {
    HandshakeConnector connector(hello_, token_, security);
    HandshakeAcceptor acceptor(security, /*checksums=*/false);
    Run(connector, acceptor);
    EXPECT_TRUE(connector.let_in()) << connector.fault();
    EXPECT_EQ(acceptor.hello(), hello_);
    EXPECT_EQ(connector.wants(), 0u);
    EXPECT_EQ(acceptor.wants(), 0u);
    EXPECT_FALSE(connector.checksums() || acceptor.checksums());
  }
}

TEST_F(SessionHandshakeTest, BothEndsDeriveTheSameKeyAndEachConnectionAnother) {
  HandshakeConnector one(hello_, token_, DataSecurity::kEncrypt);
  HandshakeAcceptor other(DataSecurity::kEncrypt, false);
  Run(one, other);
  EXPECT_EQ(one.TlsKey(), other.TlsKey());
  HandshakeConnector two(hello_, token_, DataSecurity::kEncrypt);
  HandshakeAcceptor another(DataSecurity::kEncrypt, false);
  Run(two, another);
  EXPECT_NE(one.TlsKey(), two.TlsKey());
}

TEST_F(SessionHandshakeTest, ChecksumsAreUsedIfEitherEndWantsThem) {
  for (const bool connectors : {false, true}) {
    for (const bool acceptors : {false, true}) {
      LinkHello hello = hello_;
      hello.checksums = connectors;
      HandshakeConnector connector(hello, token_, DataSecurity::kAuth);
      HandshakeAcceptor acceptor(DataSecurity::kAuth, acceptors);
      Run(connector, acceptor);
      ASSERT_TRUE(connector.let_in()) << connector.fault();
      EXPECT_EQ(connector.checksums(), connectors || acceptors);
      EXPECT_EQ(acceptor.checksums(), connectors || acceptors);
    }
  }
}

TEST_F(SessionHandshakeTest, AHandshakeWorksByteByByte) {
  HandshakeConnector connector(hello_, token_, DataSecurity::kAuth);
  HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
  for (int round = 0; round < 2; ++round) {
    for (const std::byte byte : Take(connector)) Give(acceptor, {&byte, 1});
    if (acceptor.proven()) acceptor.LetIn();
    for (const std::byte byte : Take(acceptor)) Give(connector, {&byte, 1});
  }
  EXPECT_TRUE(connector.let_in()) << connector.fault();
}

// The connector fails first, because the acceptor cannot prove that it knows the token either.
TEST_F(SessionHandshakeTest, AWrongTokenAnUnknownSessionAndAnUnknownTransportLookTheSame) {
  LinkHello unknown = hello_, elsewhere = hello_;
  unknown.who.job = 8;
  elsewhere.transport = 4;
  for (const auto& [hello, token] : {std::pair(hello_, SessionToken::Random()),
                                     std::pair(unknown, token_), std::pair(elsewhere, token_)}) {
    HandshakeConnector connector(hello, token, DataSecurity::kAuth);
    HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
    Run(connector, acceptor);
    EXPECT_FALSE(acceptor.proven());
    EXPECT_EQ(connector.fault(), NotLetIn());
    EXPECT_TRUE(Take(connector).empty()) << "sent its proof to an unauthenticated peer";
  }
}

// A peer that sends a proof whatever the challenge says gets the same bytes for an open session and
// for one that is not open.
TEST_F(SessionHandshakeTest, AWrongProofGetsTheSameAnswerWhetherTheSessionIsOpenOrNot) {
  std::vector<Bytes> verdicts;
  for (const uint64_t job : {7, 8}) {
    LinkHello hello = hello_;
    hello.who.job = job;
    HandshakeConnector unauthenticated_peer(hello, SessionToken::Random(), DataSecurity::kAuth);
    HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
    Give(acceptor, Take(unauthenticated_peer));
    EXPECT_EQ(Take(acceptor).size(), SessionHandshake::kChallengeBytes);
    Give(acceptor, Bytes(SessionHandshake::kProofBytes));
    EXPECT_EQ(acceptor.fault(), NotLetIn());
    verdicts.push_back(Take(acceptor));
  }
  EXPECT_EQ(verdicts[0], verdicts[1]);
  EXPECT_EQ(verdicts[0].size(), SessionHandshake::kVerdictBytes);
}

TEST_F(SessionHandshakeTest, WithoutSecurityAnUnknownSessionIsStillTurnedAway) {
  LinkHello hello = hello_;
  hello.who.job = 8;
  HandshakeConnector connector(hello, token_, DataSecurity::kNone);
  HandshakeAcceptor acceptor(DataSecurity::kNone, false);
  Run(connector, acceptor);
  EXPECT_EQ(connector.fault(), NotLetIn());
}

TEST_F(SessionHandshakeTest, AReplayedHandshakeIsNotLetIn) {
  HandshakeConnector connector(hello_, token_, DataSecurity::kAuth);
  HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
  const Bytes hello = Take(connector);
  Give(acceptor, hello);
  Give(connector, Take(acceptor));
  const Bytes proof = Take(connector);
  Give(acceptor, proof);
  ASSERT_TRUE(acceptor.proven());

  HandshakeAcceptor again(DataSecurity::kAuth, false);
  Give(again, hello);
  Give(again, proof);
  EXPECT_EQ(again.fault(), NotLetIn());
}

// The acceptor's own proof is no proof of the connector, though both use the same key.
TEST_F(SessionHandshakeTest, AReflectedProofIsNotLetIn) {
  HandshakeConnector unauthenticated_peer(hello_, SessionToken::Random(), DataSecurity::kAuth);
  HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
  Give(acceptor, Take(unauthenticated_peer));
  const Bytes challenge = Take(acceptor);
  Give(acceptor, absl::MakeConstSpan(challenge).last(SessionHandshake::kProofBytes));
  EXPECT_EQ(acceptor.fault(), NotLetIn());
}

TEST_F(SessionHandshakeTest, BothSidesReportADifferenceInSecurity) {
  HandshakeConnector connector(hello_, token_, DataSecurity::kAuth);
  HandshakeAcceptor acceptor(DataSecurity::kEncrypt, false);
  Run(connector, acceptor);
  for (const absl::Status& fault : {connector.fault(), acceptor.fault()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(fault)) << fault;
    EXPECT_TRUE(absl::StrContains(fault.message(), "auth")) << fault;
    EXPECT_TRUE(absl::StrContains(fault.message(), "encrypt")) << fault;
  }
}

TEST_F(SessionHandshakeTest, BothSidesReportADifferenceInVersion) {
  HandshakeConnector connector(hello_, token_, DataSecurity::kAuth);
  Bytes hello = Take(connector);
  hello[4] = std::byte{9};
  HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
  Give(acceptor, hello);
  EXPECT_TRUE(absl::StrContains(acceptor.fault().message(), "1 here, 9 there")) << acceptor.fault();
  Bytes challenge = Take(acceptor);
  challenge[4] = std::byte{9};  // the reply of a port with that version
  Give(connector, challenge);
  EXPECT_TRUE(absl::StrContains(connector.fault().message(), "1 here, 9 there"))
      << connector.fault();
}

TEST_F(SessionHandshakeTest, AnInvalidVerdictIsShown) {
  HandshakeConnector connector(hello_, token_, DataSecurity::kAuth);
  HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
  Give(acceptor, Take(connector));
  Give(connector, Take(acceptor));
  Give(acceptor, Take(connector));
  ASSERT_TRUE(acceptor.proven());
  acceptor.LetIn();
  Bytes verdict = Take(acceptor);
  verdict[4] = std::byte{7};
  Give(connector, verdict);
  EXPECT_TRUE(absl::IsInvalidArgument(connector.fault())) << connector.fault();
  EXPECT_TRUE(absl::StrContains(connector.fault().message(), "value 7; expected magic 0x"))
      << connector.fault();
}

// A proof covers every bit of every record, or the bit must have a fixed value.
TEST_F(SessionHandshakeTest, AFlippedBitAnywhereIsNotLetIn) {
  constexpr size_t kSizes[] = {SessionHandshake::kHelloBytes, SessionHandshake::kChallengeBytes,
                               SessionHandshake::kProofBytes, SessionHandshake::kVerdictBytes};
  for (int record = 0; record < 4; ++record) {
    for (size_t bit = 0; bit < 8 * kSizes[record]; ++bit) {
      const auto change = [&](int which, Bytes bytes) {
        if (which == record && bit / 8 < bytes.size()) {
          bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
        }
        return bytes;
      };
      HandshakeConnector connector(hello_, token_, DataSecurity::kAuth);
      HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
      Give(acceptor, change(0, Take(connector)));
      Give(connector, change(1, Take(acceptor)));
      Give(acceptor, change(2, Take(connector)));
      if (acceptor.proven()) acceptor.LetIn();
      Give(connector, change(3, Take(acceptor)));
      EXPECT_FALSE(connector.let_in()) << "bit " << bit << " of record " << record;
    }
  }
}

TEST_F(SessionHandshakeTest, BytesThatAreNoHelloGetNoAnswer) {
  for (const char* text : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
                           "MUST"
                           "MUST"}) {
    HandshakeAcceptor acceptor(DataSecurity::kAuth, false);
    Give(acceptor, {reinterpret_cast<const std::byte*>(text), 8});
    EXPECT_TRUE(absl::IsInvalidArgument(acceptor.fault())) << acceptor.fault();
    EXPECT_TRUE(Take(acceptor).empty());
  }
}

TEST_F(SessionHandshakeTest, AHalfOpenHandshakeIsSmall) {
  EXPECT_LE(sizeof(HandshakeAcceptor), 1024u);
  EXPECT_LE(sizeof(HandshakeConnector), 1024u);
}

}  // namespace
}  // namespace muster::session_handshake_test
