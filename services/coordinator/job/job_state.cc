#include "services/coordinator/job/job_state.h"

namespace muster {

bool IsActive(v1::JobState state) {
  return state == v1::PREPARING || state == v1::RUNNING || state == v1::RECOVERING;
}

bool IsTerminal(v1::JobState state) {
  return state == v1::SUCCEEDED || state == v1::FAILED || state == v1::CANCELLED;
}

}  // namespace muster
