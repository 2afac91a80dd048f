// manifest.json: the commit record of a checkpoint directory. docs/checkpoint_format.md defines it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

struct Manifest {
  static constexpr int kFormatVersion = 1;

  std::string job;   // id
  int64_t step = 0;  // version of the values
  int64_t total_steps = 0;
  v1::JobSpec spec;                             // of the job that wrote the checkpoint
  std::optional<v1::UpdateState> update_state;  // absent: as many updates as steps
  std::vector<std::string> slots;               // optimizer slot names
  std::string data_fingerprint;                 // of the data trained on (Dataset); "": unknown
  std::vector<v1::CheckpointFile> files;        // name, size, sha256
  int64_t create_time_unix_millis = 0;

  // Returns the manifest as JSON. Data cursor and random state follow from step and seeds; they are
  // included for readers. Returns FAILED_PRECONDITION if the spec cannot be written as JSON, for
  // example because a time in it is invalid.
  absl::StatusOr<std::string> ToJson() const;
  // Parses a manifest. Returns DATA_LOSS for a wrong checksum, or with the member that is missing
  // or has a wrong value. Returns FAILED_PRECONDITION for a newer format version.
  static absl::StatusOr<Manifest> FromJson(const std::string& json, const std::string& path);
};

}  // namespace muster
