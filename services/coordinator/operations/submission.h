// What becomes of a job spec before it may be queued: checked for every fault at once, completed,
// its origin resolved.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/job/path_rules.h"
#include "lib/job/resource_name.h"
#include "proto/muster/v1/job.pb.h"
#include "services/coordinator/operations/import_gate.h"
#include "services/coordinator/store/store.h"

namespace muster {

struct SubmissionContext {
  PathRules paths;            // which files a spec may name
  bool data_visible = false;  // open the data set as well, if it is no larger than may be held
  // Held while it is: null, or an error, which says why the data are left to the workers.
  // CANCELLED: the caller is gone.
  std::function<absl::StatusOr<std::unique_ptr<ImportGate::Slot>>()> enter_data_check = [] {
    return nullptr;
  };
  // The checkpoint that a job of this coordinator has: its directory and resource name. NOT_FOUND
  // otherwise.
  struct Found {
    std::string name;
    std::string directory;
  };
  std::function<absl::StatusOr<Found>(const CheckpointRef&)> find_checkpoint;
  // Asked between the model, the data and the checkpoint: nobody waits for the answer any more.
  std::function<bool()> caller_gone = [] { return false; };
  // One that find_checkpoint() knows is damaged. Of a path it is not told: it may be mistaken.
  std::function<void()> found_damaged = [] {};
};

struct CheckedSpec {
  v1::JobSpec spec;                        // defaults filled in
  JobOrigin origin;                        // with a graph where the spec alone does not tell it
  std::shared_ptr<const v1::Graph> graph;  // the model, built
  // By parameter, of a model that brings its own and starts anew; else empty. The caller finds them
  // a place and names it in `origin.restore`.
  std::vector<std::vector<float>> initial_values;
  std::vector<std::string> warnings;  // what may not be as the user means it
};

// The status of FaultsToStatus() with all faults: of the spec itself, of the model's arguments
// ("model"), of the data set where it is visible ("data..."), of the checkpoint to start from
// ("checkpoint.resume_from"), and of the request id (alone at fault: "INVALID_REQUEST"). Reads data
// headers and all of the checkpoint; leaves nothing behind. CANCELLED: the caller is gone.
absl::StatusOr<CheckedSpec> CheckSubmission(const v1::JobSpec& spec, const std::string& request_id,
                                            const SubmissionContext& context);

}  // namespace muster
