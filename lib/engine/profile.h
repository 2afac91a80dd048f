// Measures the time of runs, node by node.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// Collects the time of every node that an executor runs. The executor waits for each node to
// measure it, so a run takes a little longer. Thread-compatible.
class Profile {
 public:
  struct Entry {
    std::string node;
    std::string op;
    std::string types;                  // "f32[8, 64], f32[64, 10] -> f32[8, 10]"
    std::chrono::nanoseconds least{0};  // the shortest of its runs: its time without disturbances
    int64_t runs = 0;
  };

  // Returns the entry's position.
  int Add(absl::string_view node, absl::string_view op, absl::string_view types);
  void Record(int entry, std::chrono::nanoseconds time);

  // Forgets times, keeps nodes. Call it after the runs that warm caches up.
  void Clear();

  const std::vector<Entry>& entries() const { return entries_; }

  // Returns a report for people. First comes the time of a run by op, summed over each node's
  // shortest run. Then come the `nodes` slowest nodes.
  std::string Report(int nodes) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace muster
