// Graphs as text, for tests.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster {

// A graph in few words, one statement per line:
//
//   input x f32[-1, 4]                       parameter w [3, 4]
//   statistic mean [4]                       loss l          (or logits, correct)
//   y, state = MaxPool2d(x) kernel=[2, 2] ceil=1 epsilon=0.5 to=bf16
//
// A node is named as its first output; "y @blocks.0.y = Relu(x)" names it otherwise. Numbers
// without a point are integers. A CHECK fails where the text is none of this.
v1::Graph ParseGraph(absl::string_view text);

// "y, state = MaxPool2d(x)" of every node from the `first` on.
std::vector<std::string> NodeLines(const v1::Graph& graph, int first = 0);

}  // namespace muster
