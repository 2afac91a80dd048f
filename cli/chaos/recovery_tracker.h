// Who is killed when, and how long a job takes to get over it: what `muster chaos` counts, without
// processes.
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

enum class ChaosRole { kPs, kWorker, kCoordinator };

absl::string_view NameOf(ChaosRole role);

// "ps,worker"; INVALID_ARGUMENT for another word.
absl::StatusOr<std::vector<ChaosRole>> ParseChaosRoles(const std::string& text);

// Draws who is struck next. The same seed and roles draw the same.
class ChaosDice {
 public:
  // `roles`: each once. Among them a ps is drawn five times as often as is a coordinator twice and
  // a worker three times.
  ChaosDice(uint64_t seed, std::vector<ChaosRole> roles);

  struct Throw {
    double gap = 1;  // since the one before, in mean gaps: [0.5, 1.5)
    ChaosRole role = ChaosRole::kPs;
    uint64_t pick = 0;  // which one of the role, modulo their number
  };
  Throw Next();

 private:
  std::mt19937_64 random_;
  std::vector<ChaosRole> roles_;
  std::vector<double> weights_;
};

struct Strike {
  ChaosRole role = ChaosRole::kPs;
  std::string member;
  absl::Duration at;                                   // since the beginning
  int64_t step = 0;                                    // of which had been heard then
  absl::Duration recovery = absl::InfiniteDuration();  // until a new step was heard of
  bool recovered() const { return recovery != absl::InfiniteDuration(); }
};

// Follows one job through strikes by what WatchJob tells of it. All times are since the same
// beginning. Not thread-safe.
class RecoveryTracker {
 public:
  // How a strike is known to be over.
  enum class Until {
    kNextGeneration,  // a new step in a later generation: others may be of before the strike
    kNextStep,        // that, or a new step after Returned(): the generation may have gone on
  };
  void Struck(ChaosRole role, const std::string& member, Until until, absl::Duration now);
  // The member runs again.
  void Returned(const std::string& member);
  void Take(const v1::WatchJobResponse& update, absl::Duration now);

  const v1::Job& job() const { return job_; }
  absl::Span<const Strike> strikes() const { return strikes_; }
  // The oldest strike that is not over; null: none.
  const Strike* pending() const;
  // How often the job began to recover, by the reason of that event.
  const std::map<std::string, int>& recoveries() const { return recoveries_; }
  // Steps that were made once more because a recovery went back to before them.
  int64_t steps_again() const {
    return job_.recovery().steps_again() - steps_again_before_.value_or(0);
  }

 private:
  struct Open {
    size_t strike = 0;
    Until until = Until::kNextGeneration;
    uint32_t generation = 0;  // in which it struck
    std::optional<int64_t> step_at_return;
  };

  void TakeEvent(const v1::JobEvent& event);
  bool IsOver(const Open& open) const;

  v1::Job job_;
  std::vector<Strike> strikes_;
  std::vector<Open> open_;
  std::optional<int64_t> first_step_;  // heard of in this generation since it runs
  v1::JobState last_event_state_ = v1::JOB_STATE_UNSPECIFIED;
  std::map<std::string, int> recoveries_;
  std::optional<int64_t> steps_again_before_;  // the job was watched
};

struct RecoveryFigures {
  int strikes = 0;
  int recovered = 0;
  absl::Duration median, p99, longest;  // of those; nearest rank, zero where there is none
};

// Of all strikes, or of those at one role.
RecoveryFigures FiguresOf(absl::Span<const Strike> strikes, std::optional<ChaosRole> role = {});

}  // namespace muster::cli
