// Reads one array per input of the model; row i of every array is sample i.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "google/protobuf/map.h"
#include "lib/data/dataset.h"
#include "lib/data/format/npy.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// An array in a file. Immutable after Hold(); threads may share it.
class SampleArray {
 public:
  // `place` begins the message of an error.
  SampleArray(std::string place, NpyHeader header)
      : place_(std::move(place)), header_(std::move(header)) {}
  virtual ~SampleArray() = default;

  const std::string& place() const { return place_; }
  const NpyHeader& header() const { return header_; }

  // Fills `to` with the bytes of the array at `offset`. Blocks. Requires: they are in the array.
  virtual absl::Status Read(int64_t offset, absl::Span<std::byte> to) const = 0;

  // Prepares for reads of a few bytes: may take as much memory as the array has bytes. Called
  // before the first Read() of an array of ids.
  virtual absl::Status Hold() { return absl::OkStatus(); }

  // A hash of the values, or "" if only type and shape are known: equal for equal arrays on any
  // machine.
  virtual std::string fingerprint() const { return ""; }

 private:
  const std::string place_;
  const NpyHeader header_;
};

struct ArrayDatasetOptions {
  std::string field;  // "data.npy": begins the message of an error
  std::string thing;  // "a file": how messages call what the job must name for an input
  double holdout = 0;
  int64_t held_bytes_max = 0;
  // Opens the array that the job names for an input. `field` is that of the input.
  std::function<absl::StatusOr<std::unique_ptr<SampleArray>>(const std::string& named,
                                                             const std::string& field)>
      open;
};

// Opens the arrays that `inputs` names for each graph input, and checks that they fit the graph. An
// f32 input accepts any type (numbers are converted, not scaled), an i32 input integers. Reads and
// checks every id once. Arrays of ids count as memory.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenArrayDataset(
    const google::protobuf::Map<std::string, std::string>& inputs, const v1::Graph& graph,
    const ArrayDatasetOptions& options);

}  // namespace muster
