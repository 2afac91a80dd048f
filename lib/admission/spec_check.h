// Every fault of a job spec that can be seen on this machine: in the spec, its model, its data and
// the checkpoint that it starts from.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/graph/model/model.h"
#include "lib/job/path_rules.h"
#include "lib/job/resource_name.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct SpecCheckContext {
  PathRules paths;           // which files a spec may name
  bool data_visible = true;  // open the data set as well
  // A data set that takes more memory is left to the workers, with a warning.
  int64_t data_bytes_max = std::numeric_limits<int64_t>::max();
  // Returns what is held while the data are checked, or an error, which says why the data are left
  // to the workers. CANCELLED: the caller is gone.
  std::function<absl::StatusOr<std::shared_ptr<void>>()> enter_data_check = [] { return nullptr; };
  // The checkpoint of a job of this coordinator: its directory and resource name. NOT_FOUND
  // otherwise. Null: there is no coordinator, so what a job has is not checked.
  struct Found {
    std::string name;
    std::string directory;
  };
  std::function<absl::StatusOr<Found>(const CheckpointRef&)> find_checkpoint;
  // Returns whether the caller is gone. Called between the model, the data and the checkpoint.
  std::function<bool()> caller_gone = [] { return false; };
  // Called if a checkpoint of find_checkpoint() is damaged. Not called for a path, which may be
  // mistaken.
  std::function<void()> found_damaged = [] {};
};

struct SpecCheck {
  Model model;
  std::string restore;     // name, or directory, of the checkpoint to start from; "": none
  int64_t first_step = 0;  // of that checkpoint
  std::vector<std::string> warnings;
};

// The status of FaultsToStatus() with all faults, reason "INVALID_SPEC": of the spec itself, of the
// model's arguments ("model..."), of the data set ("data...") and of the checkpoint to start from
// ("checkpoint.resume_from"). Reads data headers and all of the checkpoint; leaves nothing behind.
// CANCELLED: the caller is gone.
absl::StatusOr<SpecCheck> CheckSpec(const v1::JobSpec& spec, const SpecCheckContext& context);

}  // namespace muster
