#include "services/coordinator/job/job_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace muster::job_state_test {
namespace {

TEST(JobStateTest, StatesMoveOnlyAlongTheTable) {
  const std::vector<std::pair<v1::JobState, std::vector<v1::JobState>>> table = {
      {v1::QUEUED, {v1::PREPARING, v1::SUSPENDED, v1::FAILED, v1::CANCELLED}},
      {v1::PREPARING, {v1::RUNNING, v1::RECOVERING, v1::SUSPENDED, v1::FAILED, v1::CANCELLED}},
      {v1::RUNNING, {v1::RECOVERING, v1::SUSPENDED, v1::SUCCEEDED, v1::FAILED, v1::CANCELLED}},
      {v1::RECOVERING, {v1::PREPARING, v1::SUSPENDED, v1::FAILED, v1::CANCELLED}},
      {v1::SUSPENDED, {v1::QUEUED, v1::CANCELLED}},
      {v1::SUCCEEDED, {}},
      {v1::FAILED, {}},
      {v1::CANCELLED, {}}};
  for (const auto& [from, arrows] : table) {
    for (int to = v1::QUEUED; to <= v1::CANCELLED; ++to) {
      const auto state = static_cast<v1::JobState>(to);
      EXPECT_EQ(CanMove(from, state), std::ranges::count(arrows, state) == 1)
          << v1::JobState_Name(from) << " -> " << v1::JobState_Name(state);
    }
  }
}

}  // namespace
}  // namespace muster::job_state_test
