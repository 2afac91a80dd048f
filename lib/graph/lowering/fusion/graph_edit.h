// Edits a graph during a fusion pass.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Reads and replaces the nodes of a graph. Positions of nodes do not change until the edit is
// destroyed. Requires: `graph` outlives the edit.
class GraphEdit {
 public:
  explicit GraphEdit(v1::Graph& graph);
  ~GraphEdit();  // removes the fused nodes from the graph
  GraphEdit(const GraphEdit&) = delete;
  GraphEdit& operator=(const GraphEdit&) = delete;

  int size() const { return graph_.nodes_size(); }
  const v1::Node& node(int i) const { return graph_.nodes(i); }

  // Returns whether `i` is a node with operator `op` that no Replace() has removed; -1 is no node.
  bool Is(int i, absl::string_view op) const {
    return i >= 0 && node(i).op() == op && !removed_.contains(i);
  }

  // Returns the node that makes `tensor`; -1 for inputs and parameters.
  int Maker(const std::string& tensor) const;

  // Returns the nodes that read `tensor`, in order. A node that reads it twice is listed twice.
  absl::Span<const int> Readers(const std::string& tensor) const;

  // Returns the only reader of a tensor without a role, otherwise -1.
  int OnlyReader(const std::string& tensor) const;

  // Returns whether the tensor has no role and exactly these readers. Requires: `nodes` is
  // ascending.
  bool IsReadBy(const std::string& tensor, absl::Span<const int> nodes) const;

  // Returns the first reader that is an `op`, otherwise -1.
  int FirstReader(const std::string& tensor, absl::string_view op) const;

  // Replaces one of `members` (ascending) by `fused` and removes the others. `fused` takes the
  // first of their positions that is after the makers of its inputs and before the other readers of
  // its outputs. Returns false and changes nothing if there is none.
  bool Replace(absl::Span<const int> members, v1::Node fused);

 private:
  void Unlink(int i);
  void Link(int i);

  v1::Graph& graph_;
  absl::flat_hash_map<std::string, int> makers_;
  absl::flat_hash_map<std::string, std::vector<int>> readers_;
  absl::flat_hash_set<std::string> roles_;
  absl::flat_hash_set<int> removed_;
};

}  // namespace muster
