#include "lib/checkpoint/coverage.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "glog/logging.h"

namespace muster {

Coverage::Coverage(std::vector<int64_t> range_bytes) : missing_bytes_(std::move(range_bytes)) {
  incomplete_ = std::count_if(missing_bytes_.begin(), missing_bytes_.end(),
                              [](int64_t bytes) { return bytes > 0; });
}

void Coverage::Add(int64_t range, int64_t begin, int64_t end) {
  int64_t& missing = missing_bytes_.at(range);
  if (missing == 0 || begin == end) return;
  absl::btree_map<int64_t, int64_t>& written = partial_[range];
  auto next = written.upper_bound(begin);
  if (next != written.begin() && std::prev(next)->second >= begin) --next;
  int64_t known = 0;
  while (next != written.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    known += next->second - next->first;
    next = written.erase(next);
  }
  written[begin] = end;
  missing -= end - begin - known;
  CHECK_GE(missing, 0) << "range " << range;
  if (missing == 0) {
    partial_.erase(range);
    --incomplete_;
  }
}

int64_t Coverage::FirstIncomplete() const {
  auto found = std::find_if(missing_bytes_.begin(), missing_bytes_.end(),
                            [](int64_t bytes) { return bytes > 0; });
  CHECK(found != missing_bytes_.end());
  return found - missing_bytes_.begin();
}

}  // namespace muster
