// Where the tensors of a graph lie: one arena, planned from liveness.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace muster {

inline constexpr int64_t kArenaAlignment =
    64;  // bytes: a cache line, and the widest vector register

// What a graph asks for. Tensors and nodes are known by their positions.
struct MemoryRequest {
  struct Tensor {
    int64_t bytes = 0;
    bool external = false;  // has memory of its own (parameters, their gradients): never placed,
                            // never taken over
    bool kept = false;      // its value still counts after the last node
  };

  struct Node {
    std::vector<int> reads;         // tensors whose values the node needs
    std::vector<int> writes;        // tensors it makes; no tensor is written twice
    std::vector<int> overwritable;  // of `reads`: writes[0] may take over the memory of one
    int alias_of =
        -1;  // writes[0] is this tensor's value: both share memory unless writes[0] is external
    int64_t workspace_bytes = 0;  // scratch during the node
  };

  std::vector<Tensor> tensors;
  std::vector<Node> nodes;  // in the order of execution
};

struct MemoryPlan {
  int64_t arena_bytes = 0;
  // For each tensor: the tensor whose memory it shares, often itself. Those that share name the
  // same one, and that one is external when any of them is.
  std::vector<int> storage;
  std::vector<int64_t>
      offsets;  // for each storage: bytes from the start of the arena; -1: external
  std::vector<int64_t> workspace_offsets;  // for each node; 0 where it needs none
};

// Tensors that no node writes are there from the start. Two memories overlap only when no node
// needs both.
MemoryPlan PlanMemory(const MemoryRequest& request);

// A block of memory that nodes first..last (inclusive) need.
struct Lifetime {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct Placement {
  std::vector<int64_t> offsets;  // multiples of kArenaAlignment
  int64_t bytes = 0;             // of all together
};

// Largest first, each into the smallest gap that holds it between the blocks that live at the same
// time.
//   Source: Pisarchyk & Lee, "Efficient memory management for deep neural net inference",
//   arXiv:2001.03288, section 5 (greedy by size for offset calculation).
Placement PlaceLifetimes(absl::Span<const Lifetime> lifetimes);

}  // namespace muster
