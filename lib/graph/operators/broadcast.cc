#include "lib/graph/operators/broadcast.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/status/status.h"

namespace muster {

absl::StatusOr<std::vector<int64_t>> Broadcast(absl::Span<const int64_t> a,
                                               absl::Span<const int64_t> b) {
  if (a.size() < b.size()) std::swap(a, b);
  std::vector<int64_t> y(a.begin(), a.end());
  for (size_t i = 0; i < b.size(); ++i) {
    int64_t& size = y[a.size() - b.size() + i];
    if (size != b[i] && size != 1 && b[i] != 1) {
      return absl::InvalidArgumentError(absl::StrCat("dimensions [", absl::StrJoin(a, ", "),
                                                     "] and [", absl::StrJoin(b, ", "),
                                                     "] do not broadcast"));
    }
    size = std::max(size, b[i]);
  }
  return y;
}

absl::Status RelateBroadcast(const v1::Node&, Dimensions& dimensions) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> y,
                   Broadcast(dimensions.Run("...a"), dimensions.Run("...b")));
  return dimensions.Bind("...y", y);
}

absl::Status RelateBroadcastGradient(const v1::Node&, Dimensions& dimensions) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> y,
                   Broadcast(dimensions.Run("...y"), dimensions.Run("...a")));
  return dimensions.Bind("...y", y);
}

}  // namespace muster
