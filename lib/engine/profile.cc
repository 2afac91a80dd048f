#include "lib/engine/profile.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_format.h"

namespace muster {
namespace {

double Milliseconds(const Profile::Entry& entry) { return entry.least.count() * 1e-6; }

struct OpTime {
  std::string op;
  int64_t nodes = 0;
  double milliseconds = 0;
};

std::vector<OpTime> TimesByOp(const std::vector<Profile::Entry>& entries) {
  std::map<std::string, OpTime> by_op;
  for (const Profile::Entry& entry : entries) {
    OpTime& op = by_op[entry.op];
    op.op = entry.op;
    ++op.nodes;
    op.milliseconds += Milliseconds(entry);
  }
  std::vector<OpTime> times;
  for (const auto& [name, time] : by_op) times.push_back(time);
  std::ranges::sort(times, std::ranges::greater{}, &OpTime::milliseconds);
  return times;
}

}  // namespace

int Profile::Add(absl::string_view node, absl::string_view op, absl::string_view types) {
  entries_.push_back(
      {.node = std::string(node), .op = std::string(op), .types = std::string(types)});
  return static_cast<int>(entries_.size()) - 1;
}

void Profile::Record(int entry, std::chrono::nanoseconds time) {
  Entry& e = entries_[entry];
  if (e.runs++ == 0 || time < e.least) e.least = time;
}

void Profile::Clear() {
  for (Entry& entry : entries_) {
    entry.least = std::chrono::nanoseconds(0);
    entry.runs = 0;
  }
}

std::string Profile::Report(int nodes) const {
  const std::vector<OpTime> ops = TimesByOp(entries_);
  double total = 0;
  for (const OpTime& op : ops) total += op.milliseconds;
  std::string report = absl::StrFormat("%10.3f ms a run in %d nodes\n", total, entries_.size());
  for (const OpTime& op : ops) {
    absl::StrAppendFormat(&report, "%10.3f ms  %5.1f %%  %4d  %s\n", op.milliseconds,
                          100 * op.milliseconds / std::max(total, 1e-9), op.nodes, op.op);
  }
  std::vector<const Entry*> slowest;
  for (const Entry& entry : entries_) slowest.push_back(&entry);
  std::ranges::stable_sort(slowest, std::ranges::greater{},
                           [](const Entry* entry) { return Milliseconds(*entry); });
  slowest.resize(std::min<size_t>(slowest.size(), nodes));
  for (const Entry* entry : slowest) {
    absl::StrAppendFormat(&report, "%10.3f ms  %s (%s) %s\n", Milliseconds(*entry), entry->node,
                          entry->op, entry->types);
  }
  return report;
}

}  // namespace muster
