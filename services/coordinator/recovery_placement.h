// Who carries on a job that has lost members.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "services/coordinator/scheduler.h"

namespace muster {

// A recovering job, as its last generation left it. "" stands for a member that is lost.
struct RecoveringJob {
  std::vector<std::string> workers;  // by rank
  int workers_min = 1;
  int workers_max = 1;
  bool settle_for_fewer = false;  // than there were
  std::vector<std::string> ps;    // in plan order
  bool keeps_ps = false;          // what they hold is carried on: nobody can take their place
};

// Who is left keeps his rank; who is free takes the rank of one who is lost, or a new one below the
// maximum. With fewer workers than before, if that is settled for, those left move up. The place of
// a ps goes to the one with the fewest jobs. Nothing where there are too few. Takes members from
// `free`, which has none of the job's own. Pure.
std::optional<Placement> PlaceAgain(const RecoveringJob& job, FreeMembers& free);

}  // namespace muster
