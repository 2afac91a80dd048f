#include "lib/engine/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/philox.h"

namespace muster::memory_plan_test {
namespace {

// Random numbers of one test case.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int Roll(int sides) { return kernels::RandomWords(seed_, /*stream=*/0, count_++)[0] % sides; }

 private:
  const uint64_t seed_;
  uint64_t count_ = 0;
};

// A chain of nodes over a few tensors that uses every feature of a request.
MemoryRequest RandomRequest(Dice& dice) {
  MemoryRequest request;
  const std::vector<int64_t> sizes = {4, 64, 100, 4096, 5000};
  auto add_tensor = [&](int64_t bytes) {
    request.tensors.push_back(
        {.bytes = bytes, .external = dice.Roll(6) == 0, .kept = dice.Roll(8) == 0});
    return static_cast<int>(request.tensors.size()) - 1;
  };
  for (int i = 0; i < 3; ++i) {
    const int input = add_tensor(sizes[dice.Roll(5)]);
    request.tensors[input].kept = true;
  }
  for (int i = 0; i < 30; ++i) {
    MemoryRequest::Node node;
    for (int k = dice.Roll(3) + 1; k > 0; --k) {
      node.reads.push_back(dice.Roll(static_cast<int>(request.tensors.size())));
    }
    const int first = node.reads[0];
    const bool same_size = dice.Roll(2) == 0;
    node.writes.push_back(
        add_tensor(same_size ? request.tensors[first].bytes : sizes[dice.Roll(5)]));
    if (same_size && dice.Roll(3) == 0) {
      node.alias_of = first;
    } else if (dice.Roll(2) == 0) {
      node.overwritable.push_back(first);
      if (node.reads.size() > 1 && dice.Roll(2) == 0) node.overwritable.push_back(node.reads[1]);
    }
    if (dice.Roll(3) == 0) node.writes.push_back(add_tensor(sizes[dice.Roll(5)]));
    if (dice.Roll(3) == 0) node.workspace_bytes = sizes[dice.Roll(5)];
    request.nodes.push_back(node);
  }
  for (int i = 0; i < request.nodes.size(); ++i) {
    if (dice.Roll(4) > 0) continue;
    // A node that reads an output awaits the one that makes it.
    const std::vector<int>& writes = request.nodes[i].writes;
    int next = i + 1;
    for (int more = dice.Roll(5); more > 0 && next + 1 < request.nodes.size(); --more, ++next) {
      if (std::ranges::any_of(request.nodes[next].reads,
                              [&](int t) { return std::ranges::count(writes, t) > 0; })) {
        break;
      }
    }
    if (next < request.nodes.size()) request.nodes[i].awaited_by = next;
  }
  return request;
}

// Executes a plan on memory in which every byte records the value that it holds.
class Simulation {
 public:
  Simulation(const MemoryRequest& request, const MemoryPlan& plan)
      : request_(request), plan_(plan), arena_(plan.arena_bytes, kNothing) {
    for (const MemoryRequest::Tensor& tensor : request.tensors) {
      external_.push_back(std::vector<int>(tensor.external ? tensor.bytes : 0, kNothing));
    }
    std::vector<bool> written(request.tensors.size());
    value_.resize(request.tensors.size());
    for (int t = 0; t < request.tensors.size(); ++t) value_[t] = t;
    for (const auto& node : request.nodes) {
      for (int t : node.writes) written[t] = true;
      if (node.alias_of >= 0) value_[node.writes[0]] = value_[node.alias_of];
    }
    for (int t = 0; t < request.tensors.size(); ++t) {
      if (!written[t]) Write(t);
    }
  }

  void Run() {
    for (int i = 0; i < request_.nodes.size(); ++i) {
      const MemoryRequest::Node& node = request_.nodes[i];
      for (int earlier = 0; earlier < i; ++earlier) {
        if (request_.nodes[earlier].awaited_by == i) End(earlier);
      }
      Fill(arena_.data() + plan_.workspace_offsets[i], node.workspace_bytes, kNothing);
      // A kernel may write its later outputs before it has read all inputs. It writes the first
      // output last.
      for (int k = static_cast<int>(node.writes.size()) - 1; k > 0; --k) Write(node.writes[k]);
      Fill(arena_.data() + plan_.workspace_offsets[i], node.workspace_bytes, kNothing);
      for (int t : node.reads) ExpectIntact(t, i);
      const bool may_overwrite = !node.overwritable.empty();
      Write(node.writes[0]);
      for (int t : node.reads) {
        const bool overwritable = std::ranges::count(node.overwritable, t) > 0;
        if (may_overwrite && overwritable) continue;
        ExpectIntact(t, i);
      }
      for (int t : node.writes) ExpectIntact(t, i);
    }
    for (int t = 0; t < request_.tensors.size(); ++t) {
      if (request_.tensors[t].kept || request_.tensors[t].external) ExpectIntact(t, -1);
    }
  }

 private:
  static constexpr int kNothing = -1;

  int* Memory(int tensor) {
    const int storage = plan_.storage[tensor];
    if (request_.tensors[storage].external) return external_[storage].data();
    EXPECT_EQ(plan_.offsets[storage] % kArenaAlignment, 0);
    EXPECT_LE(plan_.offsets[storage] + request_.tensors[tensor].bytes, plan_.arena_bytes);
    return arena_.data() + plan_.offsets[storage];
  }

  // A node may read its inputs and write its outputs and workspace until it is awaited.
  void End(int i) {
    const MemoryRequest::Node& node = request_.nodes[i];
    for (int t : node.reads) {
      if (plan_.storage[t] != plan_.storage[node.writes[0]]) ExpectIntact(t, i);
    }
    for (int t : node.writes) ExpectIntact(t, i);
    Fill(arena_.data() + plan_.workspace_offsets[i], node.workspace_bytes, kNothing);
  }

  void Write(int tensor) { Fill(Memory(tensor), request_.tensors[tensor].bytes, value_[tensor]); }

  static void Fill(int* memory, int64_t bytes, int value) { std::fill_n(memory, bytes, value); }

  void ExpectIntact(int tensor, int node) {
    const int* memory = Memory(tensor);
    EXPECT_EQ(std::count(memory, memory + request_.tensors[tensor].bytes, value_[tensor]),
              request_.tensors[tensor].bytes)
        << "tensor " << tensor << " at node " << node;
  }

  const MemoryRequest& request_;
  const MemoryPlan& plan_;
  std::vector<int> value_;  // by tensor: an alias has the value of its source
  std::vector<int> arena_;  // one per byte
  std::vector<std::vector<int>> external_;
};

TEST(MemoryPlanTest, NoNodeLosesAValueThatIsStillNeeded) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const MemoryRequest request = RandomRequest(dice);
    const MemoryPlan plan = PlanMemory(request);
    Simulation(request, plan).Run();
    if (HasFailure()) return;
  }
}

TEST(MemoryPlanTest, AChainOfOverwritingNodesNeedsOneTensor) {
  MemoryRequest request;
  request.tensors.resize(5, {.bytes = 640});
  for (int i = 1; i < 5; ++i) {
    request.nodes.push_back({.reads = {i - 1}, .writes = {i}, .overwritable = {i - 1}});
  }
  EXPECT_EQ(PlanMemory(request).arena_bytes, 640);
}

TEST(MemoryPlanTest, AChainWithoutOverwritingAlternatesBetweenTwoTensors) {
  MemoryRequest request;
  request.tensors.resize(9, {.bytes = 640});
  for (int i = 1; i < 9; ++i) request.nodes.push_back({.reads = {i - 1}, .writes = {i}});
  EXPECT_EQ(PlanMemory(request).arena_bytes, 2 * 640);
}

TEST(MemoryPlanTest, AnInputReadTwiceIsNotOverwritten) {
  MemoryRequest request;
  request.tensors.resize(2, {.bytes = 64});
  request.nodes.push_back({.reads = {0, 0}, .writes = {1}, .overwritable = {0}});
  EXPECT_EQ(PlanMemory(request).arena_bytes, 2 * 64);
}

TEST(MemoryPlanTest, SmallBlocksFillTheGapsBetweenLargeOnes) {
  const std::vector<Lifetime> lifetimes = {
      {.bytes = 1024, .first = 0, .last = 1},
      {.bytes = 512, .first = 1, .last = 3},
      {.bytes = 256, .first = 2, .last = 3},
      {.bytes = 768, .first = 2, .last = 3},
  };
  EXPECT_EQ(PlaceLifetimes(lifetimes).bytes, 1024 + 512);
}

}  // namespace
}  // namespace muster::memory_plan_test
