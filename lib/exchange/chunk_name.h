// Names chunks of a plan in messages.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "lib/plan/numbers.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// "chunk 7 of parameter 'w1'"
inline std::string NameOfChunk(const v1::JobPlan& plan, ChunkId chunk) {
  return absl::StrCat("chunk ", ToInt(chunk), " of parameter '",
                      plan.graph().parameters(plan.chunks(ToInt(chunk)).parameter()).name(), "'");
}

}  // namespace muster
