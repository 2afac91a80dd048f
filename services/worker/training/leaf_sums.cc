#include "services/worker/training/leaf_sums.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::unique_ptr<LeafSums>> LeafSums::Create(Device& device, SumNode node,
                                                           float* gradients, int64_t elements,
                                                           int pieces) {
  CHECK_GT(node.leaves, 1);
  auto sums = absl::WrapUnique(new LeafSums());
  sums->gradients_ = gradients;
  sums->next_leaf_.assign(pieces, 0);
  int open = 0, most = 0;
  for (const uint8_t joins : JoinsOf(node, LeavesOf(node))) {
    sums->leaves_.push_back({.open = open, .joins = joins});
    most = std::max(most, open);
    open += 1 - joins;
  }
  CHECK(open == 1 && most < kernels::kOpenSumsMax) << open << ", " << most;
  for (int i = 0; i < most; ++i) {
    ASSIGN_OR_RETURN(Device::Memory memory,
                     device.Allocate(static_cast<size_t>(elements) * sizeof(float),
                                     absl::StrCat("the sums of ", node.leaves, " logical workers (",
                                                  i + 1, " of ", most, ")")));
    sums->sums_.push_back(std::move(memory));
  }
  return sums;
}

bool LeafSums::Add(int piece, int64_t begin, int64_t end) {
  const int number = next_leaf_[piece];
  const Leaf& leaf = leaves_[number];
  const bool is_last = number + 1 == std::ssize(leaves_);
  next_leaf_[piece] = is_last ? 0 : number + 1;
  float* const gradient = gradients_ + begin;
  const auto sum = [&](int i) { return reinterpret_cast<float*>(sums_[i].get()) + begin; };
  if (leaf.joins == 0) {
    std::memcpy(sum(leaf.open), gradient, static_cast<size_t>(end - begin) * sizeof(float));
    return is_last;
  }
  // The tree adds the youngest sums first: s0 + (s1 + (s2 + gradient)).
  std::array<kernels::Gradient, kernels::kOpenSumsMax> terms;
  std::array<uint8_t, kernels::kOpenSumsMax> joins = {};
  const int first = leaf.open - leaf.joins;
  for (int i = 0; i < leaf.joins; ++i) terms[i] = {.elements = sum(first + i)};
  terms[leaf.joins] = {.elements = gradient};
  joins[leaf.joins] = static_cast<uint8_t>(leaf.joins);
  kernels::SumGradients(is_last ? gradient : sum(first), terms.data(), leaf.joins + 1, end - begin,
                        joins.data());
  return is_last;
}

}  // namespace muster
