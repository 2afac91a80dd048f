#include "lib/shard/chunks/plan_credentials.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {

namespace {

// A session number has three fields. From the lowest bit: 39 bits job number, 1 bit "is a replica",
// then the shard's index plus one.
constexpr uint64_t kOfReplica = kJobNumbersEnd;
constexpr int kShardShift = 40;

uint64_t JobNumberOf(const v1::JobPlan& plan) { return plan.job_number() % kJobNumbersEnd; }

uint64_t OwnSession(const v1::JobPlan& plan, ShardIndex shard) {
  return static_cast<uint64_t>(1 + ToInt(shard)) << kShardShift | JobNumberOf(plan);
}

absl::StatusOr<LinkCredentials> As(LinkRole role, uint32_t index, const v1::JobPlan& plan) {
  absl::StatusOr<SessionToken> token = SessionToken::FromBytes(plan.session_token());
  if (!token.ok()) {
    return WithReason(Annotate(token.status(), absl::StrCat("plan of ", plan.job())), "BAD_PLAN");
  }
  return LinkCredentials{.self = {.job = plan.job_number(),
                                  .generation = plan.generation(),
                                  .role = role,
                                  .index = index},
                         .token = *token};
}

}  // namespace

uint64_t SessionOf(const v1::JobPlan& plan, ShardIndex shard) {
  return plan.spec().resources().ps_replication() > 1 ? OwnSession(plan, shard) : plan.job_number();
}

uint64_t SessionOfReplica(const v1::JobPlan& plan, ShardIndex shard) {
  return OwnSession(plan, shard) | kOfReplica;
}

bool IsSessionOfReplica(uint64_t session) { return (session & kOfReplica) != 0; }

v1::JobPlan PlanOfShard(const v1::JobPlan& plan, ShardIndex shard) {
  v1::JobPlan view = plan;
  view.set_job_number(SessionOf(plan, shard));
  return view;
}

absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, Rank rank) {
  return As(LinkRole::kWorker, static_cast<uint32_t>(rank), plan);
}

absl::StatusOr<LinkCredentials> CredentialsOf(const v1::JobPlan& plan, ShardIndex shard) {
  return As(LinkRole::kShard, static_cast<uint32_t>(shard), plan);
}

absl::StatusOr<LinkCredentials> CredentialsFor(uint64_t session, const v1::JobPlan& plan,
                                               Rank rank) {
  absl::StatusOr<LinkCredentials> credentials = CredentialsOf(plan, rank);
  if (credentials.ok()) credentials->self.job = session;
  return credentials;
}

absl::StatusOr<LinkCredentials> CredentialsFor(uint64_t session, const v1::JobPlan& plan,
                                               ShardIndex shard) {
  absl::StatusOr<LinkCredentials> credentials = CredentialsOf(plan, shard);
  if (credentials.ok()) credentials->self.job = session;
  return credentials;
}

}  // namespace muster
