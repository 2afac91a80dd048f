// Where the time of runs goes, node by node.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// An executor that was given one adds every node it runs, and waits for each: a run takes a little
// longer than without. Thread-compatible.
class Profile {
 public:
  struct Entry {
    std::string node;
    std::string op;
    std::string types;                  // "f32[8, 64], f32[64, 10] -> f32[8, 10]"
    std::chrono::nanoseconds least{0};  // of its runs: what it takes when nothing disturbs it
    int64_t runs = 0;
  };

  // Returns the entry's position.
  int Add(absl::string_view node, absl::string_view op, absl::string_view types);
  void Record(int entry, std::chrono::nanoseconds time);

  // Forgets times, not nodes: after warming up.
  void Clear();

  const std::vector<Entry>& entries() const { return entries_; }

  // For people: the time of a run by op, from each node's least, then the `nodes` that take
  // longest.
  std::string Report(int nodes) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace muster
