#include "services/coordinator/common/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "lib/status/status.h"

namespace muster::admission_test {
namespace {

using ::testing::HasSubstr;

Admission::LimitsByKind Limits() {
  Admission::LimitsByKind limits;
  limits.fill({.total = 3, .per_client = 2});
  return limits;
}

TEST(AdmissionTest, RefusesAClientAtItsLimitButNotOthers) {
  Admission admission(Limits());
  auto first = admission.Enter(CallKind::kDownload, "a");
  auto second = admission.Enter(CallKind::kDownload, "a");
  ASSERT_TRUE(first.ok() && second.ok());

  const auto third = admission.Enter(CallKind::kDownload, "a");

  EXPECT_TRUE(absl::IsResourceExhausted(third.status()));
  EXPECT_EQ(ReasonOf(third.status()), "TOO_MANY_CALLS");
  EXPECT_THAT(std::string(third.status().message()),
              HasSubstr("ReadCheckpoint: 2 such calls of this connection"));
  EXPECT_TRUE(admission.Enter(CallKind::kDownload, "b").ok());
  EXPECT_TRUE(admission.Enter(CallKind::kWatch, "a").ok()) << "kinds are counted apart";
}

TEST(AdmissionTest, AllClientsTogetherHaveALimit) {
  Admission admission(Limits());
  std::vector<Admission::Ticket> tickets;
  for (const char* client : {"a", "b", "c"}) {
    tickets.push_back(*admission.Enter(CallKind::kCreate, client));
  }
  const auto fourth = admission.Enter(CallKind::kCreate, "d");
  EXPECT_THAT(std::string(fourth.status().message()), HasSubstr("CreateJob: 3 such calls are"));
}

TEST(AdmissionTest, EndingACallFreesOnePlace) {
  Admission admission(Limits());
  std::optional<Admission::Ticket> first = *admission.Enter(CallKind::kSave, "a");
  Admission::Ticket second = *admission.Enter(CallKind::kSave, "a");
  Admission::Ticket moved = *std::move(first);
  first.reset();
  EXPECT_EQ(admission.under_way(CallKind::kSave), 2);
  EXPECT_FALSE(admission.Enter(CallKind::kSave, "a").ok());
  moved = Admission::Ticket();
  EXPECT_EQ(admission.under_way(CallKind::kSave), 1);
  EXPECT_TRUE(admission.Enter(CallKind::kSave, "a").ok());
}

TEST(AdmissionTest, EveryKindHasALimit) {
  for (const Admission::Limit& limit : Admission::DefaultLimits()) {
    EXPECT_GT(limit.per_client, 0);
    EXPECT_GE(limit.total, limit.per_client);
  }
}

}  // namespace
}  // namespace muster::admission_test
