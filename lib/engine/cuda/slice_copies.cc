#include "lib/engine/cuda/slice_copies.h"

#include <algorithm>

#include "glog/logging.h"

namespace muster {

std::vector<SliceCopy> CopiesOf(const ParameterSlice& slice, int64_t first, int64_t count) {
  const int64_t end = first + count;
  CHECK(first >= 0 && end <= slice.elements()) << first << " to " << end;
  std::vector<SliceCopy> copies;
  for (int64_t at = first; at < end;) {
    const int64_t run = at / slice.run_elements, column = at % slice.run_elements;
    const int64_t runs = column == 0 ? (end - at) / slice.run_elements : 0;  // that are complete
    SliceCopy& copy = copies.emplace_back();
    copy.whole = slice.offset + run * slice.stride + column;
    copy.slice = at;
    copy.rows = std::max<int64_t>(runs, 1);
    copy.columns = runs > 0 ? slice.run_elements : std::min(end - at, slice.run_elements - column);
    copy.stride = runs > 1 ? slice.stride : copy.columns;
    at += copy.rows * copy.columns;
  }
  return copies;
}

}  // namespace muster
