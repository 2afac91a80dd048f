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

// Steps of the committed checkpoints in a job's checkpoint folder, ascending, and of those of which
// the disk cannot tell now whether they are. An absent folder has none.
absl::StatusOr<std::vector<int64_t>> ListCheckpointSteps(const std::string& directory);

// "<directory>/step-00001000"
std::string CheckpointPath(const std::string& directory, int64_t step);

// One committed checkpoint directory, opened: manifest and headers read and sizes checked (not the
// hashes: Verify()). Thread-safe after Open(). Damage is DATA_LOSS with the reason
// "CHECKPOINT_DAMAGED", naming the file and where in it.
class CheckpointReader {
 public:
  // NOT_FOUND: no directory or no manifest ("not a committed checkpoint"); DATA_LOSS: damaged, or a
  // step folder with the checkpoint of another step.
  static absl::StatusOr<std::unique_ptr<const CheckpointReader>> Open(const std::string& path);
  virtual ~CheckpointReader() = default;

  virtual const Manifest& manifest() const = 0;
  virtual v1::Checkpoint ToProto(absl::string_view job) const = 0;  // name, sizes, files, directory

  // The shape of every parameter, by name.
  virtual std::map<std::string, std::vector<int64_t>> Shapes() const = 0;

  // Recomputes every file's SHA-256, at one to two gigabytes a second, on the caller's thread and
  // up to three more. The process has no more than kHelpersMax of those: who finds none free
  // verifies alone. CANCELLED once `stop`, which may be null and is asked by several threads, says
  // so.
  static constexpr int kHelpersMax = 4;
  virtual absl::Status Verify(const std::function<bool()>& stop = nullptr) const = 0;

  // INVALID_ARGUMENT (reason "CHECKPOINT_MISMATCH") naming the first parameter that is missing or
  // has another shape.
  virtual absl::Status CheckFits(const v1::Graph& graph) const = 0;

  // Elements [offset, offset + out.size()) of a parameter's values (slot "") or of an optimizer
  // slot ("m"). NOT_FOUND when the checkpoint has no such slot.
  virtual absl::Status Read(absl::string_view parameter, absl::string_view slot, int64_t offset,
                            absl::Span<float> out) const = 0;
};

}  // namespace muster
