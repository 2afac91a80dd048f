#include "lib/engine/cuda/row_distance.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "glog/logging.h"
#include "kernels/conversion.h"

namespace muster {
namespace {

double Square(double x) { return x * x; }

std::vector<float> Widened(absl::Span<const uint16_t> row, kernels::cuda::Type type) {
  std::vector<float> wide(row.size());
  kernels::Convert(
      wide.data(), kernels::ElementType::kF32, row.data(),
      type == kernels::cuda::Type::kBf16 ? kernels::ElementType::kBf16 : kernels::ElementType::kF16,
      static_cast<int64_t>(row.size()));
  return wide;
}

}  // namespace

double RowDistance(absl::Span<const uint16_t> own, absl::Span<const uint16_t> other, int64_t length,
                   kernels::cuda::Type type) {
  CHECK_EQ(own.size(), other.size());
  CHECK_EQ(own.size() % length, 0u);
  const size_t rows = own.size() / length;
  std::vector<double> norms(rows), distances(rows);  // squares
  double sum = 0;
  int64_t nonzero = 0;
  // Some rows at a time, to bound the memory for widened values.
  const size_t rows_at_once = std::max<size_t>(1, (size_t{1} << 20) / length);
  for (size_t first = 0; first < rows; first += rows_at_once) {
    const size_t count = std::min(rows_at_once, rows - first);
    const std::vector<float> a = Widened(own.subspan(first * length, count * length), type);
    const std::vector<float> b = Widened(other.subspan(first * length, count * length), type);
    for (size_t i = 0; i < a.size(); ++i) {
      norms[first + i / length] += Square(a[i]);
      distances[first + i / length] += Square(double{b[i]} - a[i]);
    }
  }
  for (double norm : norms) {
    sum += norm;
    nonzero += norm > 0;
  }
  const double usual = nonzero == 0 ? 0 : sum / static_cast<double>(nonzero);
  double largest = 0;
  for (size_t row = 0; row < rows; ++row) {
    if (!std::isfinite(norms[row]) || !std::isfinite(distances[row])) {
      return std::numeric_limits<double>::infinity();
    }
    if (distances[row] == 0) continue;
    largest = std::max(largest, distances[row] / std::max(norms[row], usual));
  }
  return std::sqrt(largest);
}

}  // namespace muster
