#include "lib/engine/memory_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "glog/logging.h"

namespace muster {
namespace {

int64_t RoundUp(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Decides which tensors share memory, and how long each block of memory is needed.
class StorageAssignment {
 public:
  explicit StorageAssignment(const MemoryRequest& request)
      : request_(request),
        storage_(request.tensors.size()),
        lifetimes_(request.tensors.size(), Lifetime{.first = -1, .last = -1}) {
    std::iota(storage_.begin(), storage_.end(), 0);
    JoinAliases();
    FindLifetimes();
    TakeOver();
    for (int t = 0; t < storage_.size(); ++t) storage_[t] = StorageOf(t);
  }

  const std::vector<int>& storage() const { return storage_; }
  const Lifetime& lifetime(int storage) const { return lifetimes_[storage]; }

 private:
  // Returns the owner of the memory that `tensor` uses. Shortens the chain for later calls.
  int StorageOf(int tensor) {
    while (storage_[tensor] != storage_[storage_[tensor]]) {
      storage_[tensor] = storage_[storage_[tensor]];
    }
    return storage_[tensor];
  }

  void JoinAliases() {
    for (const MemoryRequest::Node& node : request_.nodes) {
      if (node.alias_of < 0 || request_.tensors[node.writes[0]].external) continue;
      storage_[node.writes[0]] = storage_[node.alias_of];
    }
  }

  // A tensor that no node writes keeps `first` = -1: it exists before the first node.
  void FindLifetimes() {
    const int end = request_.nodes.size();
    for (int i = 0; i < end; ++i) {
      for (int t : request_.nodes[i].writes) {
        Lifetime& lifetime = lifetimes_[storage_[t]];
        if (storage_[t] == t) lifetime.first = i;
        lifetime.last = std::max(lifetime.last, i);
      }
      for (int t : request_.nodes[i].reads) {
        Lifetime& lifetime = lifetimes_[storage_[t]];
        lifetime.last = std::max(lifetime.last, i);
      }
    }
    for (int t = 0; t < request_.tensors.size(); ++t) {
      Lifetime& lifetime = lifetimes_[storage_[t]];
      lifetime.bytes = std::max(lifetime.bytes, request_.tensors[t].bytes);
      if (request_.tensors[t].kept) lifetime.last = end;
    }
  }

  // Makes outputs reuse the memory of inputs that no later node needs.
  void TakeOver() {
    for (int i = 0; i < request_.nodes.size(); ++i) {
      TakeOver(i);
      KeepUntilAwaited(request_.nodes[i]);
    }
  }

  void TakeOver(int i) {
    const MemoryRequest::Node& node = request_.nodes[i];
    if (node.overwritable.empty()) return;
    const int output = StorageOf(node.writes[0]);
    if (output != node.writes[0] || request_.tensors[output].external) return;
    // The memory is free if this node is its last reader, reads it nowhere else, and the sizes are
    // equal.
    for (int input : node.overwritable) {
      const int taken = StorageOf(input);
      if (request_.tensors[taken].external || lifetimes_[taken].last != i ||
          lifetimes_[taken].bytes != lifetimes_[output].bytes || ReadElsewhere(node, taken)) {
        continue;
      }
      lifetimes_[taken].last = lifetimes_[output].last;
      storage_[output] = taken;
      return;
    }
  }

  // Called after the node may have taken the memory of an input, and before a later node may.
  void KeepUntilAwaited(const MemoryRequest::Node& node) {
    for (const std::vector<int>* used : {&node.reads, &node.writes}) {
      for (int t : *used) {
        Lifetime& lifetime = lifetimes_[StorageOf(t)];
        lifetime.last = std::max(lifetime.last, node.awaited_by);
      }
    }
  }

  // Returns whether the node also reads this memory through an input that it must not overwrite.
  bool ReadElsewhere(const MemoryRequest::Node& node, int storage) {
    auto here = [&](int t) { return StorageOf(t) == storage; };
    return std::ranges::count_if(node.reads, here) > std::ranges::count_if(node.overwritable, here);
  }

  const MemoryRequest& request_;
  std::vector<int> storage_;
  std::vector<Lifetime> lifetimes_;  // one per storage
};

}  // namespace

Placement PlaceLifetimes(absl::Span<const Lifetime> lifetimes) {
  std::vector<int> order(lifetimes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [&](int i) { return lifetimes[i].bytes; });

  Placement placement{.offsets = std::vector<int64_t>(lifetimes.size())};
  std::vector<int> placed;  // sorted by offset
  for (int block : order) {
    const Lifetime& wanted = lifetimes[block];
    const int64_t bytes = RoundUp(wanted.bytes);
    // Visits the blocks that live at the same time, in the order of their offsets. `end` is the
    // highest end so far, so the gap before the next block starts there.
    int64_t best = -1, best_gap = std::numeric_limits<int64_t>::max(), end = 0;
    for (int other : placed) {
      const Lifetime& taken = lifetimes[other];
      if (taken.last < wanted.first || wanted.last < taken.first) continue;
      const int64_t gap = placement.offsets[other] - end;
      if (gap >= bytes && gap < best_gap) {
        best = end;
        best_gap = gap;
      }
      end = std::max(end, placement.offsets[other] + RoundUp(taken.bytes));
    }
    placement.offsets[block] = best >= 0 ? best : end;
    placement.bytes = std::max(placement.bytes, placement.offsets[block] + bytes);
    placed.insert(std::ranges::upper_bound(placed, placement.offsets[block], {},
                                           [&](int i) { return placement.offsets[i]; }),
                  block);
  }
  return placement;
}

MemoryPlan PlanMemory(const MemoryRequest& request) {
  const StorageAssignment assignment(request);
  MemoryPlan plan{.storage = assignment.storage(),
                  .offsets = std::vector<int64_t>(request.tensors.size(), -1),
                  .workspace_offsets = std::vector<int64_t>(request.nodes.size(), 0)};
  std::vector<Lifetime> lifetimes;
  std::vector<int64_t*> destinations;
  for (int t = 0; t < request.tensors.size(); ++t) {
    if (plan.storage[t] != t || request.tensors[t].external) continue;
    lifetimes.push_back(assignment.lifetime(t));
    destinations.push_back(&plan.offsets[t]);
  }
  for (int i = 0; i < request.nodes.size(); ++i) {
    if (request.nodes[i].workspace_bytes == 0) continue;
    lifetimes.push_back({.bytes = request.nodes[i].workspace_bytes,
                         .first = i,
                         .last = std::max(i, request.nodes[i].awaited_by)});
    destinations.push_back(&plan.workspace_offsets[i]);
  }
  const Placement placement = PlaceLifetimes(lifetimes);
  for (size_t i = 0; i < destinations.size(); ++i) *destinations[i] = placement.offsets[i];
  plan.arena_bytes = placement.bytes;
  return plan;
}

}  // namespace muster
