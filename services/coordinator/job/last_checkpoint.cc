#include "services/coordinator/job/last_checkpoint.h"

#include "absl/strings/str_cat.h"
#include "lib/job/resource_name.h"

namespace muster {

int64_t CommittedStep(const v1::Job& record) {
  const auto reference = ParseCheckpointRef(record.checkpoint());
  return reference ? reference->step.value_or(-1) : -1;
}

std::string WhereItGoesOn(const v1::Job& record) {
  return record.checkpoint().empty() ? "its beginning (it has no checkpoint)"
                                     : CheckpointIdOf(record.checkpoint());
}

std::string AdviceToResume(const v1::Job& record) {
  if (record.checkpoint().empty()) {
    return ". It has no checkpoint: submitted again, it starts from its beginning";
  }
  return absl::StrCat(
      ". To go on from its last checkpoint, submit it again with --set checkpoint.resume_from=",
      JobIdOf(record.name()), "@", CommittedStep(record));
}

}  // namespace muster
