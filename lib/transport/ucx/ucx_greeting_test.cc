#include "lib/transport/ucx/ucx_greeting.h"

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace muster::ucx_greeting_test {
namespace {

const LinkIdentity kWho = {
    .job = 0x0102030405060708, .generation = 2, .role = LinkRole::kShard, .index = 3};
const LinkTag kTag = {std::byte{7}, std::byte{8}};
const LinkTag kOther = {std::byte{9}};

TEST(UcxGreetingTest, DecodingAnEncodedJoinGivesTheSame) {
  const UcxJoin join = {.tag = kTag, .identity = kWho};
  const auto bytes = join.Encode(SessionToken(), "from", "to");
  const auto decoded = UcxJoin::Decode(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->tag, kTag);
  EXPECT_EQ(decoded->identity, kWho);
}

TEST(UcxGreetingTest, TheFieldsOfAJoinAreWhereTheProtocolSays) {
  const UcxJoin join = {.tag = kTag, .identity = kWho};
  const auto bytes = join.Encode(SessionToken(), "from", "to");
  EXPECT_EQ(bytes[0], std::byte{7});
  EXPECT_EQ(bytes[16], std::byte{8});  // job, little-endian
  EXPECT_EQ(bytes[23], std::byte{1});
  EXPECT_EQ(bytes[24], std::byte{2});  // generation
  EXPECT_EQ(bytes[28], std::byte{3});  // index
  EXPECT_EQ(bytes[32], std::byte{2});  // role
}

TEST(UcxGreetingTest, TheProofOfAJoinFitsOnlyItsTokenAndItsTwoAddresses) {
  const SessionToken token = SessionToken::Random();
  const UcxJoin join = {.tag = kTag, .identity = kWho};
  auto bytes = join.Encode(token, "from", "to");
  EXPECT_TRUE(UcxJoin::IsProven(bytes, token, "from", "to"));
  EXPECT_FALSE(UcxJoin::IsProven(bytes, SessionToken::Random(), "from", "to"));
  EXPECT_FALSE(UcxJoin::IsProven(bytes, token, "fro", "mto"));
  EXPECT_FALSE(UcxJoin::IsProven(bytes, token, "from", "t"));
  for (size_t at : {0u, 16u, 39u, 40u, 71u}) {
    bytes[at] ^= std::byte{1};
    EXPECT_FALSE(UcxJoin::IsProven(bytes, token, "from", "to")) << at;
    bytes[at] ^= std::byte{1};
  }
}

TEST(UcxGreetingTest, BytesOfAnotherSizeOrRoleAreNoJoin) {
  auto bytes = UcxJoin{.tag = kTag, .identity = kWho}.Encode(SessionToken(), "from", "to");
  EXPECT_FALSE(UcxJoin::Decode(absl::MakeConstSpan(bytes).first(71)).has_value());
  bytes[32] = std::byte{3};
  EXPECT_FALSE(UcxJoin::Decode(bytes).has_value());
  bytes[32] = std::byte{1};
  bytes[39] = std::byte{1};
  EXPECT_FALSE(UcxJoin::Decode(bytes).has_value());
}

TEST(UcxGreetingTest, AWelcomeIsDecodedAndItsProofFitsOnlyItsLink) {
  const SessionToken token = SessionToken::Random();
  const UcxControl welcome = {.to = kTag,
                              .kind = UcxControl::Kind::kWelcome,
                              .own = kOther,
                              .proof = ProveWelcome(token, kWho, kTag, kOther)};
  const auto decoded = UcxControl::Decode(welcome.Encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->to, kTag);
  EXPECT_EQ(decoded->kind, UcxControl::Kind::kWelcome);
  EXPECT_EQ(decoded->own, kOther);
  EXPECT_TRUE(IsWelcomeProven(decoded->proof, token, kWho, kTag, kOther));
  EXPECT_FALSE(IsWelcomeProven(decoded->proof, token, kWho, kOther, kTag));
  EXPECT_FALSE(IsWelcomeProven(decoded->proof, SessionToken::Random(), kWho, kTag, kOther));
  LinkIdentity another = kWho;
  another.index = 4;
  EXPECT_FALSE(IsWelcomeProven(decoded->proof, token, another, kTag, kOther));
}

TEST(UcxGreetingTest, ControlMessagesOtherThanWelcomeEndInZeros) {
  const auto bytes = UcxControl{.to = kTag, .kind = UcxControl::Kind::kBye}.Encode();
  EXPECT_EQ(bytes[16], std::byte{4});
  for (size_t at = 17; at < bytes.size(); ++at) EXPECT_EQ(bytes[at], std::byte{0}) << at;
  EXPECT_FALSE(UcxControl::Decode(absl::MakeConstSpan(bytes).first(71)).has_value());
}

}  // namespace
}  // namespace muster::ucx_greeting_test
