// A graph while a fusion pass rewrites it.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Positions of nodes stay as they are until the edit is destroyed. `graph` outlives it.
class GraphEdit {
 public:
  explicit GraphEdit(v1::Graph& graph);
  ~GraphEdit();  // takes the nodes that were fused away out of the graph
  GraphEdit(const GraphEdit&) = delete;
  GraphEdit& operator=(const GraphEdit&) = delete;

  int size() const { return graph_.nodes_size(); }
  const v1::Node& node(int i) const { return graph_.nodes(i); }

  // Whether node `i` is there and is an `op`; -1 is no node.
  bool Is(int i, absl::string_view op) const {
    return i >= 0 && node(i).op() == op && !removed_.contains(i);
  }

  // The node that makes `tensor`; -1 for inputs and parameters.
  int Maker(const std::string& tensor) const;

  // The nodes that read `tensor`, in order; one that reads it twice is there twice.
  absl::Span<const int> Readers(const std::string& tensor) const;

  // The only reader of a tensor without a role; otherwise -1.
  int OnlyReader(const std::string& tensor) const;

  // Whether these nodes, ascending, are all that read a tensor without a role.
  bool IsReadBy(const std::string& tensor, absl::Span<const int> nodes) const;

  // The first reader that is an `op`; otherwise -1.
  int FirstReader(const std::string& tensor, absl::string_view op) const;

  // Puts `fused` in the place of one of `members` (ascending) and removes the others: the first
  // place behind the makers of its inputs and before the other readers of its outputs. Changes
  // nothing and returns false when there is none.
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
