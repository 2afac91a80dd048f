#include "services/coordinator/job/recovery/steps_to_train.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "lib/plan/endless_data.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

// More than a fingerprint has. A worker may report any text.
constexpr size_t kFingerprintCharactersMax = 100;

std::string PrintableFingerprint(const std::string& fingerprint) {
  return Printable(fingerprint.substr(0, kFingerprintCharactersMax));
}

absl::Status Failure(absl::string_view reason, const std::string& message) {
  return WithReason(absl::FailedPreconditionError(message), reason);
}

std::string Samples(const v1::DatasetFacts& facts) {
  return absl::StrCat(facts.samples(), " + ", facts.evaluation_samples());
}

bool HasSameParts(const v1::DatasetFacts& a, const v1::DatasetFacts& b) {
  return std::ranges::equal(a.part_samples(), b.part_samples());
}

// Returns whether the contents are known to differ. A worker of an older version reports no
// fingerprint.
bool HasOtherContents(const v1::DatasetFacts& a, const v1::DatasetFacts& b) {
  return !a.fingerprint().empty() && !b.fingerprint().empty() && a.fingerprint() != b.fingerprint();
}

bool IsSame(const v1::DatasetFacts& a, const v1::DatasetFacts& b) {
  return a.samples() == b.samples() && a.evaluation_samples() == b.evaluation_samples() &&
         a.block_samples() == b.block_samples() && HasSameParts(a, b) && !HasOtherContents(a, b);
}

// Requires: `facts` and `others` differ.
std::string Difference(const std::string& first, const v1::DatasetFacts& facts,
                       const std::string& second, const v1::DatasetFacts& others) {
  constexpr absl::string_view kWhat = "workers see different data: ";
  if (Samples(facts) != Samples(others)) {
    return absl::StrCat(kWhat, first, " has ", Samples(facts), " samples, ", second, " has ",
                        Samples(others));
  }
  if (!HasSameParts(facts, others)) {
    return absl::StrCat(kWhat, "the parts of the mixture have ",
                        absl::StrJoin(facts.part_samples(), ", "), " samples on ", first, ", ",
                        absl::StrJoin(others.part_samples(), ", "), " on ", second);
  }
  if (HasOtherContents(facts, others)) {
    return absl::StrCat(kWhat, second, " has other files or labels than ", first, ": fingerprint ",
                        PrintableFingerprint(others.fingerprint()), " against ",
                        PrintableFingerprint(facts.fingerprint()),
                        "; give all workers the same files and the same version of Muster");
  }
  return absl::StrCat(kWhat, "a block has ", facts.block_samples(), " samples on ", first, ", ",
                      others.block_samples(), " on ", second, "; set data.shuffle.block.samples");
}

// Returns the first of the workers that has reported a fingerprint, or the first of all.
const std::string& FirstWithFingerprint(const v1::JobPlan& plan, const JobMembers& members) {
  const auto first = std::ranges::find_if(plan.workers(), [&](const v1::PlanWorker& worker) {
    return !members.at(worker.member()).dataset.fingerprint().empty();
  });
  return (first == plan.workers().end() ? plan.workers(0) : *first).member();
}

}  // namespace

absl::StatusOr<int64_t> StepsToTrain(const v1::JobPlan& plan, const JobMembers& members,
                                     int64_t committed_step) {
  const std::string& first = FirstWithFingerprint(plan, members);
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

const std::string& FingerprintOfData(const v1::JobPlan& plan, const JobMembers& members) {
  return members.at(FirstWithFingerprint(plan, members)).dataset.fingerprint();
}

absl::Status CheckSameData(const v1::JobPlan& plan, const JobMembers& members,
                           const TrainedData& trained) {
  const std::string& fingerprint = FingerprintOfData(plan, members);
  if (fingerprint.empty() || trained.fingerprint.empty() || fingerprint == trained.fingerprint) {
    return absl::OkStatus();
  }
  const std::string difference =
      absl::StrCat("fingerprint ", PrintableFingerprint(fingerprint), " against ",
                   PrintableFingerprint(trained.fingerprint));
  if (!trained.is_own) {
    return Failure("OTHER_DATA",
                   absl::StrCat("the files or labels of the data are not those of ", plan.restore(),
                                ", which has the same data section: ", difference));
  }
  return Failure(
      "DATA_CHANGED",
      absl::StrCat("the files or labels of the data have changed since the job trained on them: ",
                   difference,
                   "; to train on the new data, submit the job again with checkpoint.resume_from: ",
                   plan.job()));
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
