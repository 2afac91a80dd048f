// Checks a job spec before it is queued: reports all faults at once, fills in defaults, and
// resolves the origin of its parameters.
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
  PathRules paths;            // the files that a spec may name
  bool data_visible = false;  // also open the data set, if it is within the size limit
  // Returns a slot that is held during the check of data, or null. An error tells why the workers
  // alone check the data. Returns CANCELLED if the caller is gone.
  std::function<absl::StatusOr<std::unique_ptr<ImportGate::Slot>>()> enter_data_check = [] {
    return nullptr;
  };
  // Returns the directory and the resource name of a checkpoint of this coordinator, or NOT_FOUND.
  struct Found {
    std::string name;
    std::string directory;
  };
  std::function<absl::StatusOr<Found>(const CheckpointRef&)> find_checkpoint;
  // Returns true if the caller no longer waits. Called between the model, the data and the
  // checkpoint.
  std::function<bool()> caller_gone = [] { return false; };
  // Called if a checkpoint that find_checkpoint() knows is damaged. Not called for other paths,
  // which may be wrong.
  std::function<void()> found_damaged = [] {};
};

struct CheckedSpec {
  v1::JobSpec spec;                        // defaults filled in
  JobOrigin origin;                        // has a graph if the spec alone does not define it
  std::shared_ptr<const v1::Graph> graph;  // the built model
  // Values by parameter, of a model that brings its own and does not resume; otherwise empty.
  // The caller stores them and names the place in `origin.restore`.
  std::vector<std::vector<float>> initial_values;
  std::vector<std::string> warnings;  // settings that the user may not intend
};

// Checks and completes a spec. Reads the headers of the data and the whole checkpoint. Leaves no
// files behind. Returns FaultsToStatus() with all faults: of the spec, the model's arguments
// ("model"), the visible data set ("data..."), the checkpoint ("checkpoint.resume_from"), and the
// request id (alone at fault: "INVALID_REQUEST").
// Returns CANCELLED if the caller is gone.
absl::StatusOr<CheckedSpec> CheckSubmission(const v1::JobSpec& spec, const std::string& request_id,
                                            const SubmissionContext& context);

}  // namespace muster
