#include "services/coordinator/steps_to_train.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status Failure(absl::string_view reason, const std::string& message) {
  return WithReason(absl::FailedPreconditionError(message), reason);
}

std::string Samples(const v1::DatasetFacts& facts) {
  return absl::StrCat(facts.samples(), " + ", facts.evaluation_samples());
}

}  // namespace

absl::StatusOr<int64_t> StepsToTrain(const v1::JobPlan& plan, const JobMembers& members,
                                     int64_t committed_step) {
  const std::string& first = plan.workers(0).member();
  const v1::DatasetFacts& facts = members.at(first).dataset;
  for (const v1::PlanWorker& worker : plan.workers()) {
    const v1::DatasetFacts& other = members.at(worker.member()).dataset;
    if (facts.samples() != other.samples() ||
        facts.evaluation_samples() != other.evaluation_samples()) {
      return Failure("DATASET_MISMATCH",
                     absl::StrCat("workers see different data: ", first, " has ", Samples(facts),
                                  " samples, ", worker.member(), " has ", Samples(other)));
    }
  }
  const int64_t batch_size = plan.spec().data().batch_size();
  if (facts.samples() < batch_size) {
    return Failure("DATA_TOO_SMALL",
                   absl::StrCat("data.batch_size: ", batch_size,
                                " samples do not fit the data set's ", facts.samples()));
  }
  const int64_t total = TotalSteps(plan.spec(), facts.samples());
  const bool ends_here =
      plan.first_step() == total && (plan.carries() > 0 || committed_step == total);
  if (plan.first_step() >= total && !ends_here) {
    return Failure("NOTHING_TO_TRAIN", absl::StrCat("the checkpoint is of step ", plan.first_step(),
                                                    ", the job ends at step ", total,
                                                    ": raise training.steps or training.epochs"));
  }
  return total;
}

}  // namespace muster
