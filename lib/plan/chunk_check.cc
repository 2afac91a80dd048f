#include "lib/plan/chunk_check.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "lib/limits/limits.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kChunkElementsMax = limits::kChunkBytesMax / static_cast<int64_t>(sizeof(float));

// "parameter 'w'", "slot 2 of parameter 'w'"
std::string NameOfTensor(const v1::JobPlan& plan, int parameter, int slot) {
  return absl::StrCat(slot == 0 ? "" : absl::StrCat("slot ", slot, " of "), "parameter '",
                      plan.graph().parameters(parameter).name(), "'");
}

// "chunk 7, elements [8, +4) of parameter 'w'"
std::string NameOfChunk(const v1::JobPlan& plan, int id) {
  const v1::PlanChunk& chunk = plan.chunks(id);
  return absl::StrCat("chunk ", id, ", elements [", chunk.offset(), ", +", chunk.elements(),
                      ") of ", NameOfTensor(plan, chunk.parameter(), chunk.slot()));
}

// Unlike ElementCount(), multiplies nothing that could overflow.
bool IsWithinLimit(const v1::Parameter& parameter) {
  int64_t elements = 1;
  for (const int64_t size : parameter.shape()) {
    if (size < 1 || size > limits::kParameterElementsMax / elements) return false;
    elements *= size;
  }
  return true;
}

absl::Status CheckCounts(const v1::JobPlan& plan) {
  if (plan.chunks_size() > limits::kChunksMax) {
    return BadPlan(plan,
                   absl::StrCat(plan.chunks_size(), " chunks; the limit is ", limits::kChunksMax));
  }
  if (plan.graph().parameters_size() > limits::kParametersMax) {
    return BadPlan(plan, absl::StrCat(plan.graph().parameters_size(), " parameters; the limit is ",
                                      limits::kParametersMax));
  }
  for (const v1::Parameter& parameter : plan.graph().parameters()) {
    if (IsWithinLimit(parameter)) continue;
    return BadPlan(plan, absl::StrCat("parameter '", parameter.name(), "' does not have 1 to ",
                                      limits::kParameterElementsMax, " elements"));
  }
  return absl::OkStatus();
}

absl::Status CheckChunk(const v1::JobPlan& plan, int id) {
  const v1::PlanChunk& chunk = plan.chunks(id);
  const int parameters = plan.graph().parameters_size(), slots = AveragedSlots(plan.spec());
  if (chunk.parameter() < 0 || chunk.parameter() >= parameters) {
    return BadPlan(plan, absl::StrCat("chunk ", id, " is of parameter ", chunk.parameter(), " of ",
                                      parameters));
  }
  const auto bad = [&](const auto&... why) {
    return BadPlan(plan, absl::StrCat(NameOfChunk(plan, id), ", ", why...));
  };
  if (chunk.slot() < 0 || chunk.slot() > slots) return bad("where ", slots, " slots have chunks");
  if (chunk.elements() < 1 || chunk.elements() > kChunkElementsMax) {
    return bad("does not have 1 to ", kChunkElementsMax, " elements");
  }
  const int64_t elements = ElementCount(plan.graph().parameters(chunk.parameter()));
  if (chunk.offset() < 0 || chunk.offset() > elements - chunk.elements()) {
    return bad("which has ", elements);
  }
  if (chunk.shard() < 0 || chunk.shard() >= plan.shards_size()) {
    return bad("is on shard ", chunk.shard(), " of ", plan.shards_size());
  }
  return absl::OkStatus();
}

// Requires: CheckChunk() accepted each chunk.
absl::Status CheckCover(const v1::JobPlan& plan) {
  std::vector<int> by_offset(plan.chunks_size());
  std::iota(by_offset.begin(), by_offset.end(), 0);
  std::ranges::stable_sort(by_offset, {}, [&](int id) { return plan.chunks(id).offset(); });
  const int tensors_of_each = 1 + AveragedSlots(plan.spec());
  std::vector<int64_t> covered(plan.graph().parameters_size() * tensors_of_each, 0);
  const auto gap = [&](int64_t begin, int64_t end, int parameter, int slot) {
    return BadPlan(plan, absl::StrCat("elements [", begin, ", ", end, ") of ",
                                      NameOfTensor(plan, parameter, slot), " are in no chunk"));
  };
  for (const int id : by_offset) {
    const v1::PlanChunk& chunk = plan.chunks(id);
    int64_t& next = covered[chunk.parameter() * tensors_of_each + chunk.slot()];
    if (chunk.offset() > next) return gap(next, chunk.offset(), chunk.parameter(), chunk.slot());
    if (chunk.offset() < next) {
      return BadPlan(plan, absl::StrCat(NameOfChunk(plan, id), ", begins in another chunk, which ",
                                        "ends at element ", next));
    }
    next += chunk.elements();
  }
  for (int i = 0; i < std::ssize(covered); ++i) {
    const int parameter = i / tensors_of_each;
    const int64_t elements = ElementCount(plan.graph().parameters(parameter));
    if (covered[i] < elements) return gap(covered[i], elements, parameter, i % tensors_of_each);
  }
  return absl::OkStatus();
}

// A worker of a local_sgd job updates a chunk's values and slots together, so both need the same
// cuts.
absl::Status CheckSlotsAreCutAlike(const v1::JobPlan& plan) {
  if (AveragedSlots(plan.spec()) == 0) return absl::OkStatus();
  const auto place = [](const v1::PlanChunk& chunk) {
    return std::tuple(chunk.parameter(), chunk.offset(), chunk.elements());
  };
  absl::flat_hash_set<std::tuple<int, int64_t, int64_t>> values;
  for (const v1::PlanChunk& chunk : plan.chunks()) {
    if (chunk.slot() == 0) values.insert(place(chunk));
  }
  for (int id = 0; id < plan.chunks_size(); ++id) {
    if (values.contains(place(plan.chunks(id)))) continue;
    return BadPlan(plan, absl::StrCat(NameOfChunk(plan, id), ": the values are cut otherwise"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BadPlan(const v1::JobPlan& plan, absl::string_view why) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("plan of ", plan.job(), ", generation ",
                                                            plan.generation(), ": ", why)),
                    "BAD_PLAN");
}

absl::Status CheckChunks(const v1::JobPlan& plan) {
  RETURN_IF_ERROR(CheckCounts(plan));
  for (int id = 0; id < plan.chunks_size(); ++id) RETURN_IF_ERROR(CheckChunk(plan, id));
  RETURN_IF_ERROR(CheckCover(plan));
  return CheckSlotsAreCutAlike(plan);
}

std::optional<FieldFault> ChunkCountFault(const v1::JobSpec& spec, const v1::Graph& graph) {
  const int64_t chunk_bytes =
      spec.chunk_bytes() > 0 ? spec.chunk_bytes() : limits::kChunkBytesDefault;
  const int64_t chunks = (1 + AveragedSlots(spec)) * ChunkCount(graph, chunk_bytes);
  if (chunks <= limits::kChunksMax) return std::nullopt;
  return FieldFault{"chunk_bytes",
                    absl::StrCat("cuts the model into ", chunks, " chunks, at most ",
                                 limits::kChunksMax, " are possible: choose larger ones")};
}

}  // namespace muster
