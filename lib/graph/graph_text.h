// Writes and reads graphs as text, for tests.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// Parses a graph, one statement per line:
//
//   input x f32[-1, 4]                       parameter w [3, 4]
//   statistic mean [4]                       loss l          (or logits, correct)
//   y, state = MaxPool2d(x) kernel=[2, 2] ceil=1 epsilon=0.5 to=bf16
//
// A node has the name of its first output; "y @blocks.0.y = Relu(x)" gives it another name. A list
// of attribute values is one of integers unless it has a point. A single value is an integer if it
// reads as one, else a number, else a word. A statistic has the momentum 0.1. A line of another
// form fails a CHECK.
v1::Graph ParseGraph(absl::string_view text);

// Returns a line such as "y, state = MaxPool2d(x)" for every node, starting with node `first`.
std::vector<std::string> NodeLines(const v1::Graph& graph, int first = 0);

}  // namespace muster
