// The part of `muster chaos` that needs no processes: draws the strikes and measures the
// recoveries.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// The target of a strike: a member of this role, or the job's number of workers (kScale).
enum class ChaosRole { kPs, kWorker, kCoordinator, kScale };

absl::string_view NameOf(ChaosRole role);

// Parses a list such as "ps,worker". Returns INVALID_ARGUMENT for an unknown role.
absl::StatusOr<std::vector<ChaosRole>> ParseChaosRoles(const std::string& text);

// Draws the role and the member of each strike. The same seed and roles give the same sequence.
class ChaosDice {
 public:
  // Requires: `roles` has no duplicates. The weights are ps 5, worker 3, coordinator 2, scale 2.
  ChaosDice(uint64_t seed, std::vector<ChaosRole> roles);

  struct Throw {
    double gap = 1;  // wait before this strike, in units of ChaosOptions::every: [0.5, 1.5)
    ChaosRole role = ChaosRole::kPs;
    // Index of the member, modulo the number of members of the role. For kScale, of the numbers of
    // workers.
    uint64_t pick = 0;
  };
  Throw Next();

 private:
  std::mt19937_64 random_;
  std::vector<ChaosRole> roles_;
  std::vector<double> weights_;
};

struct Strike {
  ChaosRole role = ChaosRole::kPs;
  std::string member;                                  // or "scale to 3 workers"
  absl::Duration at;                                   // since the start of the run
  int64_t step = 0;                                    // the last step reported before the strike
  absl::Duration recovery = absl::InfiniteDuration();  // time from the strike to the first new step
  bool recovered() const { return recovery != absl::InfiniteDuration(); }
};

// Measures the recoveries of one job from its WatchJob messages. All times are since the start of
// the run. Not thread-safe.
class RecoveryTracker {
 public:
  // Which message ends the recovery from a strike.
  enum class Until {
    // A new step in a later generation. Steps of the same generation may date from before the
    // strike.
    kNextGeneration,
    // As kNextGeneration, or a new step after Returned(): the generation may survive the strike.
    kNextStep,
  };
  void Struck(ChaosRole role, const std::string& member, Until until, absl::Duration now);
  // The member runs again.
  void Returned(const std::string& member);
  void Take(const v1::WatchJobResponse& update, absl::Duration now);

  const v1::Job& job() const { return job_; }
  absl::Span<const Strike> strikes() const { return strikes_; }
  // The oldest strike whose recovery is not over, or null.
  const Strike* pending() const;
  // The number of recoveries by the reason of the event that began them.
  const std::map<std::string, int>& recoveries() const { return recoveries_; }
  // Steps that were computed twice because a recovery returned to an earlier step.
  int64_t steps_again() const {
    return job_.recovery().steps_again() - steps_again_before_.value_or(0);
  }

 private:
  struct Open {
    size_t strike = 0;
    Until until = Until::kNextGeneration;
    uint32_t generation = 0;  // of the job at the strike
    std::optional<int64_t> step_at_return;
  };

  void TakeEvent(const v1::JobEvent& event);
  bool IsOver(const Open& open) const;

  v1::Job job_;
  std::vector<Strike> strikes_;
  std::vector<Open> open_;
  std::optional<int64_t> first_step_;  // first step reported in this generation while RUNNING
  v1::JobState last_event_state_ = v1::JOB_STATE_UNSPECIFIED;
  std::map<std::string, int> recoveries_;
  std::optional<int64_t> steps_again_before_;  // the value when the watch began
};

struct RecoveryFigures {
  int strikes = 0;
  int recovered = 0;
  // The recovery times of the recovered strikes, by nearest rank. Zero if there are none.
  absl::Duration median, p99, longest;
};

// Summarizes all strikes, or only those at `role`.
RecoveryFigures FiguresOf(absl::Span<const Strike> strikes, std::optional<ChaosRole> role = {});

}  // namespace muster::cli
