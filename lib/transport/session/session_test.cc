#include "lib/transport/session/session.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace muster::session_test {
namespace {

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

TEST(SessionTokenTest, ItsProofIsHmacSha256) {
  // The expected value comes from:
  // openssl dgst -sha256 -mac HMAC -macopt hexkey:30313233343536373839616263646566
  const auto token = SessionToken::FromBytes("0123456789abcdef");
  ASSERT_TRUE(token.ok()) << token.status();
  const SessionToken::Proof proof = token->Prove(BytesOf("muster"));
  EXPECT_EQ(absl::BytesToHexString(
                absl::string_view(reinterpret_cast<const char*>(proof.data()), proof.size())),
            "1b4db876046c4047260fcd253c9a86b90b0023ff3d56aea6371f4cb8d839d604");
}

TEST(SessionTokenTest, BelievesOnlyTheProofOfThisMessageWithThisToken) {
  const SessionToken token = SessionToken::Random(), other = SessionToken::Random();
  SessionToken::Proof proof = token.Prove(BytesOf("who I am"));
  EXPECT_TRUE(token.Believes(BytesOf("who I am"), proof));
  EXPECT_FALSE(token.Believes(BytesOf("who I am not"), proof));
  EXPECT_FALSE(other.Believes(BytesOf("who I am"), proof));
  EXPECT_FALSE(token.Believes(BytesOf("who I am"), absl::MakeConstSpan(proof).first(31)));
  EXPECT_FALSE(token.Believes(BytesOf("who I am"), {}));
  proof[31] ^= std::byte{1};
  EXPECT_FALSE(token.Believes(BytesOf("who I am"), proof));
}

TEST(SessionTokenTest, ConvertsToSixteenBytesAndBack) {
  const SessionToken token = SessionToken::Random();
  EXPECT_FALSE(token == SessionToken::Random());
  EXPECT_TRUE(*SessionToken::FromBytes(token.ToBytes()) == token);
  for (const std::string& bytes : {std::string(), std::string(15, 'x'), std::string(17, 'x')}) {
    EXPECT_EQ(SessionToken::FromBytes(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SessionTableTest, OneGenerationOfAJobIsOpen) {
  SessionTable table;
  const SessionToken first = SessionToken::Random(), second = SessionToken::Random();
  EXPECT_EQ(table.Find(1, 1), nullptr);
  table.Open(1, 1, first);
  table.Open(2, 1, second);
  ASSERT_NE(table.Find(1, 1), nullptr);
  EXPECT_TRUE(*table.Find(1, 1) == first);
  EXPECT_TRUE(*table.Find(2, 1) == second);
  table.Open(1, 2, second);
  EXPECT_EQ(table.Find(1, 1), nullptr);
  ASSERT_NE(table.Find(1, 2), nullptr);
  EXPECT_TRUE(*table.Find(1, 2) == second);
  table.Close(1, 1);
  EXPECT_NE(table.Find(1, 2), nullptr);
  table.Close(1, 2);
  EXPECT_EQ(table.Find(1, 2), nullptr);
  EXPECT_NE(table.Find(2, 1), nullptr);
}

TEST(SessionTableTest, FindSinceFindsGenerationsBeforeTheOpenOne) {
  SessionTable table;
  const SessionToken token = SessionToken::Random();
  EXPECT_EQ(table.FindSince(1, 1), nullptr);
  table.Open(1, 2, token);
  for (const uint32_t generation : {1u, 2u}) {
    ASSERT_NE(table.FindSince(1, generation), nullptr) << generation;
    EXPECT_TRUE(*table.FindSince(1, generation) == token);
  }
  EXPECT_EQ(table.FindSince(1, 3), nullptr);
  EXPECT_EQ(table.FindSince(2, 1), nullptr);
}

}  // namespace
}  // namespace muster::session_test
