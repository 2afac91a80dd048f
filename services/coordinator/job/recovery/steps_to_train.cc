#include "services/coordinator/job/recovery/steps_to_train.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/plan/endless_data.h"
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

bool IsSame(const v1::DatasetFacts& a, const v1::DatasetFacts& b) {
  return a.samples() == b.samples() && a.evaluation_samples() == b.evaluation_samples();
}

std::string Difference(const std::string& first, const v1::DatasetFacts& facts,
                       const std::string& second, const v1::DatasetFacts& others) {
  return absl::StrCat("workers see different data: ", first, " has ", Samples(facts), " samples, ",
                      second, " has ", Samples(others));
}

}  // namespace

absl::StatusOr<int64_t> StepsToTrain(const v1::JobPlan& plan, const JobMembers& members,
                                     int64_t committed_step) {
  const std::string& first = plan.workers(0).member();
  const v1::DatasetFacts& facts = members.at(first).dataset;
  for (const v1::PlanWorker& worker : plan.workers()) {
    const v1::DatasetFacts& other = members.at(worker.member()).dataset;
    if (!IsSame(facts, other)) {
      return Failure("DATASET_MISMATCH", Difference(first, facts, worker.member(), other));
    }
  }
  const int64_t batch_size = plan.spec().data().batch_size();
  if (facts.samples() < batch_size) {
    return Failure("DATA_TOO_SMALL",
                   absl::StrCat("data.batch_size: ", batch_size,
                                " samples do not fit the data set's ", facts.samples()));
  }
  if (facts.samples() >= kEndlessSamples &&
      plan.spec().training().length_case() == v1::TrainingSpec::kEpochs) {
    return Failure("DATA_ENDLESS",
                   "training.epochs: the data of the program is a stream without end, so it has no "
                   "epochs: set training.steps instead");
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

std::string DifferenceOfData(const JobMembers& members, const std::string& worker,
                             const v1::DatasetFacts& facts) {
  for (const std::string& name : members.workers()) {
    const v1::DatasetFacts& known = members.at(name).dataset;
    if (known.samples() == 0) continue;  // not reported since a restart of the coordinator
    return IsSame(known, facts) ? "" : Difference(name, known, worker, facts);
  }
  return "";
}

std::vector<std::string> NewcomersWithOtherData(const JobMembers& members) {
  const v1::DatasetFacts* known = nullptr;
  for (const std::string& name : members.workers()) {
    const JobMembers::Member& worker = members.at(name);
    if (!worker.was_there) continue;
    if (known != nullptr && !IsSame(*known, worker.dataset)) return {};
    known = &worker.dataset;
  }
  if (known == nullptr) return {};
  std::vector<std::string> newcomers;
  for (const std::string& name : members.workers()) {
    if (!IsSame(*known, members.at(name).dataset)) newcomers.push_back(name);
  }
  return newcomers;
}

}  // namespace muster
