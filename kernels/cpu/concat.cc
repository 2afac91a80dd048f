#include "kernels/concat.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kernels/cpu/parallel.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrainBytes = 1 << 16;

// Calls move(part, offset in the part, offset in the whole, bytes) for runs that cover everything.
template <typename F>
void ForEachRun(std::span<const int64_t> row_bytes, int64_t rows, F move) {
  const int64_t width = std::accumulate(row_bytes.begin(), row_bytes.end(), int64_t{0});
  if (width == 0) return;
  // The work is divided by bytes, so that threads share one long row as evenly as many short ones.
  ParallelFor(rows * width, kGrainBytes, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / width;
      int64_t column = begin % width;
      for (size_t part = 0; part < row_bytes.size() && begin < end; ++part) {
        const int64_t bytes = row_bytes[part];
        if (column >= bytes) {
          column -= bytes;
          continue;
        }
        const int64_t run = std::min(bytes - column, end - begin);
        move(part, row * bytes + column, begin, run);
        begin += run;
        column = 0;
      }
    }
  });
}

}  // namespace

void Concat(void* whole, std::span<const void* const> parts, std::span<const int64_t> row_bytes,
            int64_t rows) {
  ForEachRun(row_bytes, rows, [&](size_t part, int64_t from, int64_t to, int64_t bytes) {
    std::memcpy(static_cast<char*>(whole) + to, static_cast<const char*>(parts[part]) + from,
                bytes);
  });
}

void Split(std::span<void* const> parts, const void* whole, std::span<const int64_t> row_bytes,
           int64_t rows) {
  ForEachRun(row_bytes, rows, [&](size_t part, int64_t to, int64_t from, int64_t bytes) {
    std::memcpy(static_cast<char*>(parts[part]) + to, static_cast<const char*>(whole) + from,
                bytes);
  });
}

}  // namespace muster::kernels
