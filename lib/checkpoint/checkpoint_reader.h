// Reads committed checkpoints.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/checkpoint/manifest.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Returns the steps of the committed checkpoints in a job's checkpoint folder, ascending. Includes
// a checkpoint if an error of the disk hides whether it has a manifest. An absent folder has none.
absl::StatusOr<std::vector<int64_t>> ListCheckpointSteps(const std::string& directory);

// "<directory>/step-00001000"
std::string CheckpointPath(const std::string& directory, int64_t step);

// An open, committed checkpoint. Open() reads manifest and headers and checks sizes, but not
// hashes; see Verify(). Thread-safe after Open(). Damage is DATA_LOSS with reason
// "CHECKPOINT_DAMAGED", and names the file and the place in it.
class CheckpointReader {
 public:
  // Returns NOT_FOUND if there is no directory or no manifest ("not a committed checkpoint").
  // Returns DATA_LOSS if it is damaged, or if a step folder contains the checkpoint of another
  // step.
  static absl::StatusOr<std::unique_ptr<const CheckpointReader>> Open(const std::string& path);
  virtual ~CheckpointReader() = default;

  virtual const Manifest& manifest() const = 0;
  virtual v1::Checkpoint ToProto(absl::string_view job) const = 0;  // name, sizes, files, directory

  // Returns the shape of every parameter, by name.
  virtual std::map<std::string, std::vector<int64_t>> Shapes() const = 0;

  // Recomputes every file's SHA-256, at one to two gigabytes per second, on the caller's thread and
  // up to three helper threads. The process has at most kHelpersMax helpers; a caller without one
  // verifies alone. Returns CANCELLED once `stop` returns true. `stop` may be null, and is called
  // by several threads.
  static constexpr int kHelpersMax = 4;
  virtual absl::Status Verify(const std::function<bool()>& stop = nullptr) const = 0;

  // Returns INVALID_ARGUMENT (reason "CHECKPOINT_MISMATCH") with the first parameter that is
  // missing or has another shape.
  virtual absl::Status CheckFits(const v1::Graph& graph) const = 0;

  // Reads elements [offset, offset + out.size()) of a parameter's values (slot "") or of an
  // optimizer slot ("m"). Returns NOT_FOUND if the checkpoint has no such parameter or slot.
  virtual absl::Status Read(absl::string_view parameter, absl::string_view slot, int64_t offset,
                            absl::Span<float> out) const = 0;
};

}  // namespace muster
