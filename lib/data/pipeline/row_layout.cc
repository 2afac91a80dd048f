#include "lib/data/pipeline/row_layout.h"

#include <algorithm>

namespace muster {
namespace {

constexpr int64_t kAlignment = 64;
// Bytes of the rows that a thread reads at once. Copying them takes several times as long as
// waking a thread.
constexpr int64_t kRunBytes = int64_t{64} << 10;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

int64_t BytesOfRows(int64_t samples, absl::Span<const int64_t> row_bytes) {
  int64_t bytes = 0;
  for (int64_t row : row_bytes) bytes += Aligned(samples * row);
  return bytes;
}

std::vector<absl::Span<std::byte>> PlaceRows(std::byte* memory, int64_t samples,
                                             absl::Span<const int64_t> row_bytes) {
  std::vector<absl::Span<std::byte>> rows;
  for (int64_t row : row_bytes) {
    rows.emplace_back(memory, static_cast<size_t>(samples * row));
    memory += Aligned(samples * row);
  }
  return rows;
}

std::vector<absl::Span<std::byte>> SubRows(absl::Span<const absl::Span<std::byte>> rows,
                                           absl::Span<const int64_t> row_bytes, int64_t first,
                                           int64_t count) {
  std::vector<absl::Span<std::byte>> some;
  for (size_t i = 0; i < rows.size(); ++i) {
    some.push_back(rows[i].subspan(first * row_bytes[i], count * row_bytes[i]));
  }
  return some;
}

int64_t RowsOfRun(const Dataset& dataset, absl::Span<const int64_t> row_bytes) {
  if (dataset.is_slow()) return 1;
  int64_t bytes = 0;
  for (const int64_t row : row_bytes) bytes += row;
  return CeilDiv(kRunBytes, std::max<int64_t>(1, bytes));
}

}  // namespace muster
