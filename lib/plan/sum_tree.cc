#include "lib/plan/sum_tree.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>

#include "glog/logging.h"

namespace muster {
namespace {

SumNode LeftOf(SumNode node) {
  return {.first_leaf = node.first_leaf, .leaves = (node.leaves + 1) / 2};
}

SumNode RightOf(SumNode node) {
  const int64_t left = (node.leaves + 1) / 2;
  return {.first_leaf = node.first_leaf + left, .leaves = node.leaves - left};
}

// Appends the joins of the pieces of `node`, which begin at `pieces[joins.size()]`.
void AppendJoins(SumNode node, absl::Span<const SumNode> pieces, std::vector<uint8_t>& joins) {
  CHECK_LT(joins.size(), pieces.size()) << "no piece has leaf " << node.first_leaf;
  const SumNode piece = pieces[joins.size()];
  if (piece == node) {
    joins.push_back(0);
    return;
  }
  CHECK(piece.first_leaf == node.first_leaf && piece.leaves < node.leaves)
      << "piece " << joins.size() << " has leaves " << piece.first_leaf << " + " << piece.leaves
      << ", the node " << node.first_leaf << " + " << node.leaves;
  AppendJoins(LeftOf(node), pieces, joins);
  AppendJoins(RightOf(node), pieces, joins);
  ++joins.back();
}

}  // namespace

std::vector<SumNode> CutNode(SumNode node, int64_t parts) {
  CHECK(parts >= 1 && parts <= node.leaves) << parts << " parts of " << node.leaves << " leaves";
  const auto is_split_later = [](const SumNode& a, const SumNode& b) {
    return std::tie(a.leaves, a.first_leaf) < std::tie(b.leaves, b.first_leaf);
  };
  std::priority_queue<SumNode, std::vector<SumNode>, decltype(is_split_later)> open(is_split_later);
  open.push(node);
  while (static_cast<int64_t>(open.size()) < parts) {
    const SumNode largest = open.top();
    open.pop();
    open.push(LeftOf(largest));
    open.push(RightOf(largest));
  }
  std::vector<SumNode> cut;
  for (; !open.empty(); open.pop()) cut.push_back(open.top());
  std::ranges::sort(cut, {}, &SumNode::first_leaf);
  return cut;
}

std::vector<SumNode> LeavesOf(SumNode node) { return CutNode(node, node.leaves); }

std::vector<uint8_t> JoinsOf(SumNode node, absl::Span<const SumNode> pieces) {
  std::vector<uint8_t> joins;
  joins.reserve(pieces.size());
  AppendJoins(node, pieces, joins);
  CHECK_EQ(joins.size(), pieces.size()) << "pieces beyond the node";
  return joins;
}

std::vector<UsefulWorkers> UsefulWorkersOf(int64_t leaves) {
  CHECK_GE(leaves, 1);
  std::map<int64_t, int64_t, std::greater<>> nodes = {{leaves, 1}};  // how many, by their leaves
  std::vector<UsefulWorkers> useful = {{.workers = 1, .largest_node = leaves}};
  // The largest node shrinks when the last one of its size is split.
  while (useful.back().largest_node > 1) {
    const auto [largest, count] = *nodes.begin();
    nodes.erase(nodes.begin());
    nodes[(largest + 1) / 2] += count;
    nodes[largest / 2] += count;
    useful.push_back(
        {.workers = useful.back().workers + count, .largest_node = nodes.begin()->first});
  }
  return useful;
}

int64_t LargestNode(int64_t leaves, int64_t workers) {
  CHECK(workers >= 1 && workers <= leaves) << workers << " workers, " << leaves << " leaves";
  int64_t largest = leaves;
  for (const UsefulWorkers& useful : UsefulWorkersOf(leaves)) {
    if (useful.workers <= workers) largest = useful.largest_node;
  }
  return largest;
}

BatchShare ShareOfNode(int64_t batch_size, int64_t leaves, SumNode node) {
  CHECK(leaves >= 1 && leaves <= batch_size) << leaves << " leaves, " << batch_size << " samples";
  CHECK(node.first_leaf >= 0 && node.leaves <= leaves - node.first_leaf);
  const auto first_of = [&](int64_t leaf) {
    return leaf * (batch_size / leaves) + std::min(leaf, batch_size % leaves);
  };
  const int64_t first = first_of(node.first_leaf);
  return {.first = first, .count = first_of(node.first_leaf + node.leaves) - first};
}

}  // namespace muster
