// Finds all faults of a job spec that are visible on this machine: in the spec, its model, its data
// and the checkpoint that it starts from.
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
  std::string uploads = "";  // the folder of uploaded models; "": there is no coordinator
  bool data_visible = true;  // open the data set as well
  // Limit of the memory that a data set takes. A larger one is left to the workers, with a warning.
  int64_t data_bytes_max = std::numeric_limits<int64_t>::max();
  // Called before data files are opened. Returns an object that is kept during the check. After an
  // error the data is left to the workers, with a warning that has the error's message.
  std::function<absl::StatusOr<std::shared_ptr<void>>()> enter_data_check = [] { return nullptr; };
  struct Found {
    std::string name;  // resource name
    std::string directory;
  };
  // Finds a checkpoint of a job of this coordinator. Returns NOT_FOUND if there is none. Null:
  // there is no coordinator, so checkpoints of jobs are not checked.
  std::function<absl::StatusOr<Found>(const CheckpointRef&)> find_checkpoint;
  // Returns whether the caller is gone. Called after each check (model, data, checkpoint), and
  // while a checkpoint is read.
  std::function<bool()> caller_gone = [] { return false; };
  // Called if `resume_from` names a checkpoint of a job and that checkpoint is damaged. Not called
  // if it is a path, because the user may have given a wrong one.
  std::function<void()> found_damaged = [] {};
};

struct SpecCheck {
  Model model;
  std::string restore;     // name, or directory, of the checkpoint to start from; "": none
  int64_t first_step = 0;  // of that checkpoint
  std::vector<std::string> warnings;
};

// Checks `spec`, its model, its data and the checkpoint to start from. Opens no file if the spec
// names a file that `context.paths` forbids. Reads all of the checkpoint, and changes no file.
// Returns all faults as FaultsToStatus() does, with reason INVALID_SPEC. Faults of the model are at
// "model...", of the data at "data...", of the checkpoint at "checkpoint.resume_from".
// Returns CANCELLED if the caller is gone.
absl::StatusOr<SpecCheck> CheckSpec(const v1::JobSpec& spec, const SpecCheckContext& context);

}  // namespace muster
