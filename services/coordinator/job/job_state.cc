#include "services/coordinator/job/job_state.h"

namespace muster {

bool CanMove(v1::JobState from, v1::JobState to) {
  switch (from) {
    case v1::QUEUED:
      return to == v1::PREPARING || to == v1::SUSPENDED || to == v1::FAILED || to == v1::CANCELLED;
    case v1::PREPARING:
      return to == v1::RUNNING || to == v1::RECOVERING || to == v1::SUSPENDED || to == v1::FAILED ||
             to == v1::CANCELLED;
    case v1::RUNNING:
      return to == v1::RECOVERING || to == v1::SUSPENDED || IsTerminal(to);
    case v1::RECOVERING:
      return to == v1::PREPARING || to == v1::SUSPENDED || to == v1::FAILED || to == v1::CANCELLED;
    case v1::SUSPENDED:
      return to == v1::QUEUED || to == v1::CANCELLED;
    default:
      return false;
  }
}

bool IsActive(v1::JobState state) {
  return state == v1::PREPARING || state == v1::RUNNING || state == v1::RECOVERING;
}

bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

}  // namespace muster
