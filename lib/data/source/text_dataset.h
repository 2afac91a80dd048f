// Reads windows of bytes of a file or a folder. The target of each byte is the next byte.
//
// The text is divided into blocks of 2,048 bytes; with holdout h every round(1/h)-th block is held
// out. Sample i of an epoch is the T bytes at i * T + shift of the other blocks, concatenated.
// `shift` in [0, T) is drawn for every epoch, so that window borders move. Held-out windows do not
// overlap and stay inside their block.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "lib/data/dataset.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Implements OpenDataset() for `data.text`.
absl::StatusOr<std::unique_ptr<const Dataset>> OpenTextDataset(const v1::DataSpec& spec,
                                                               const v1::Graph& graph,
                                                               int64_t held_bytes_max);

}  // namespace muster
