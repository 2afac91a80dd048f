// Places the tensors of a graph in one arena, planned from liveness.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace muster {

inline constexpr int64_t kArenaAlignment =
    64;  // bytes: a cache line, and the widest vector register

// The memory that a graph needs. Tensors and nodes are identified by their positions.
struct MemoryRequest {
  struct Tensor {
    int64_t bytes = 0;
    // The tensor has its own memory (parameters, their gradients): never placed, never reused.
    bool external = false;
    bool kept = false;  // its value is needed after the last node
  };

  struct Node {
    std::vector<int> reads;         // tensors whose values the node needs
    std::vector<int> writes;        // tensors it produces; no tensor is written twice
    std::vector<int> overwritable;  // subset of `reads`: writes[0] may reuse the memory of one
    // writes[0] has this tensor's value: both share memory unless writes[0] is external. -1: none.
    int alias_of = -1;
    int64_t workspace_bytes = 0;  // scratch memory while the node runs
    // The later node that waits for the end of this one, which may run until then. -1: the next
    // node.
    int awaited_by = -1;
  };

  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  // in the order of execution
};

struct MemoryPlan {
  int64_t arena_bytes = 0;
  // The tensor that owns the memory of each tensor, often the tensor itself. Tensors that share
  // memory name the same owner. The owner is external if any of them is.
  std::vector<int> storage;
  std::vector<int64_t>
      offsets;  // for each storage: bytes from the start of the arena; -1: external
  std::vector<int64_t> workspace_offsets;  // for each node; 0 if it needs none
};

// Plans the memory of `request`. A tensor that no node writes has its value from the start. Two
// blocks of memory overlap only if no node needs both.
MemoryPlan PlanMemory(const MemoryRequest& request);

// A block of memory that the nodes first..last (inclusive) need.
struct Lifetime {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct Placement {
  std::vector<int64_t> offsets;  // multiples of kArenaAlignment
  int64_t bytes = 0;             // size of the whole arena
};

// Places the largest block first. Each block takes the smallest sufficient gap between the blocks
// that live at the same time.
//   Source: Pisarchyk & Lee, "Efficient memory management for deep neural net inference",
//   arXiv:2001.03288, section 5 (greedy by size for offset calculation).
Placement PlaceLifetimes(absl::Span<const Lifetime> lifetimes);

}  // namespace muster
