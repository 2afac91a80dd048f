#include "lib/security/certificate.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace muster::certificate_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kYear = absl::Hours(24 * 365);
const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

CertifiedKey Authority() { return *MakeAuthority("muster test", kNow, kYear); }

TEST(Identity, ConvertsToASpiffeIdAndBack) {
  for (const Identity& identity :
       {Identity{Role::kWorker, "worker-3"}, Identity{Role::kPs, ""}, Identity{Role::kAdmin, "ann"},
        Identity{Role::kCoordinator, ""}, Identity{Role::kSubmitter, "bob"}}) {
    const auto parsed = ParseIdentityUri(UriOf(identity));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, identity);
  }
  EXPECT_EQ(UriOf({Role::kWorker, "w-1"}), "spiffe://muster/worker/w-1");
}

TEST(Identity, RefusesInvalidUris) {
  for (const char* uri :
       {"", "spiffe://muster", "spiffe://muster/", "spiffe://muster/root",
        "spiffe://muster/worker/", "spiffe://muster/worker/a/b", "spiffe://muster/worker/a b",
        "spiffe://other/worker", "https://muster/worker", "spiffe://muster/WORKER",
        "spiffe://muster/worker/../admin"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseIdentityUri(uri).status())) << uri;
  }
}

TEST(Certificate, HoldsIdentityHostsAndValidity) {
  const auto issued = IssueCertificate(
      Authority(),
      {.identity = {Role::kCoordinator, ""},
       .hosts = {"muster-coordinator.muster.svc", "*.lab.example", "127.0.0.1", "::1"},
       .lifetime = absl::Hours(24)},
      kNow);
  ASSERT_TRUE(issued.ok()) << issued.status();

  const auto facts = ReadCertificate(issued->certificate);

  ASSERT_TRUE(facts.ok()) << facts.status();
  ASSERT_TRUE(facts->identity.ok()) << facts->identity.status();
  EXPECT_EQ(*facts->identity, (Identity{Role::kCoordinator, ""}));
  EXPECT_THAT(facts->hosts,
              ElementsAre("muster-coordinator.muster.svc", "*.lab.example", "127.0.0.1", "::1"));
  EXPECT_EQ(facts->ends, kNow + absl::Hours(24));
  EXPECT_LT(facts->begins, kNow) << "another machine's clock may be behind";
  EXPECT_EQ(facts->issuer, "muster test");
  EXPECT_FALSE(facts->is_authority);
  EXPECT_EQ(facts->sha256.size(), 64);
  EXPECT_TRUE(absl::StrContains(issued->key, "BEGIN PRIVATE KEY"));
}

TEST(Certificate, AnAuthorityHasNoIdentity) {
  const auto facts = ReadCertificate(Authority().certificate);
  ASSERT_TRUE(facts.ok());
  EXPECT_TRUE(facts->is_authority);
  EXPECT_FALSE(facts->identity.ok());
  EXPECT_THAT(facts->hosts, IsEmpty());
}

TEST(Certificate, RefusesImpossibleOrdersWithTheReason) {
  const CertifiedKey authority = Authority();
  auto refusal = [&](const CertifiedKey& by, CertificateOrder order) {
    const auto issued = IssueCertificate(by, order, kNow);
    EXPECT_TRUE(absl::IsInvalidArgument(issued.status()));
    return std::string(issued.status().message());
  };
  const CertificateOrder worker{.identity = {Role::kWorker, "w-1"}, .lifetime = absl::Hours(1)};
  const auto end = *IssueCertificate(authority, worker, kNow);

  EXPECT_THAT(refusal(authority, {.identity = {Role::kCoordinator, ""}, .lifetime = kYear / 2}),
              HasSubstr("names and addresses"));
  EXPECT_THAT(refusal(authority, {.identity = {Role::kWorker, ""}, .lifetime = 2 * kYear}),
              HasSubstr("ends on"));
  EXPECT_THAT(refusal(end, worker), HasSubstr("not one of an authority"));
  EXPECT_THAT(refusal({authority.certificate, end.key}, worker), HasSubstr("does not match"));
  EXPECT_THAT(refusal({"nothing", "nothing"}, worker), HasSubstr("no certificate"));
  EXPECT_THAT(refusal({authority.certificate, "nothing"}, worker), HasSubstr("private key"));
  for (const char* host : {"", "a b", "a,DNS:evil", "a\nb", "*", "-a"}) {
    EXPECT_THAT(refusal(authority, {.identity = {Role::kCoordinator, ""},
                                    .hosts = {host},
                                    .lifetime = absl::Hours(1)}),
                HasSubstr("is no host"))
        << host;
  }
}

}  // namespace
}  // namespace muster::certificate_test
