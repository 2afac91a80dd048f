#include "kernels/cpu/reduction_loop.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/loop_nest.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_level.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements of a parallel piece

template <int kSources>
void Map(ElementwiseLoop* loop, float* y, Dimensions shape,
         const std::array<Operand, kSources>& operands) {
  std::array<Dimensions, kSources> shapes;
  for (int s = 0; s < kSources; ++s) shapes[s] = operands[s].dimensions;
  LoopNest<kSources> rows = MakeLoopNest<kSources>(shape, shapes);
  const int64_t columns = rows.sizes[--rows.rank];  // the innermost loop is `loop`
  unsigned repeats = 0;
  for (int s = 0; s < kSources; ++s) repeats |= (rows.strides[s][rows.rank] == 0) << s;

  ParallelFor(Elements(shape), kGrain, [&](int64_t begin, int64_t end) {
    NestCursor<kSources> cursor(rows, begin / columns);
    int64_t column = begin % columns;
    while (begin < end) {
      const int64_t n = std::min(columns - column, end - begin);
      const float* sources[kSources];
      for (int s = 0; s < kSources; ++s) {
        sources[s] = operands[s].data + cursor.offset(s) + (repeats >> s & 1 ? 0 : column);
      }
      loop(y + begin, sources, repeats, n);
      begin += n;
      column = 0;
      cursor.Next();
    }
  });
}

// The operations that differ between sums and maxima.
struct Combination {
  double start;
  double (*row)(const float* x, int64_t n);
  void (*rows)(float* to, const float* const* rows, int64_t n);
  double (*pair)(double a, double b);
};

Combination Sums() {
  return {.start = 0,
          .row = Elementwise().sum,
          .rows = Elementwise().add_rows,
          .pair = [](double a, double b) { return a + b; }};
}

Combination Maxima() {
  return {.start = -std::numeric_limits<double>::infinity(),
          .row = Elementwise().max,
          .rows = Elementwise().max_rows,
          .pair = [](double a, double b) { return a > b || a != a ? a : b; }};
}

constexpr int64_t kPanel = 512;  // at most this many columns are reduced together
// Rows added in float before a column's sum is added in double.
constexpr int64_t kRowsInFloat = 64;

// Reduces the tensor `loop(sources...)`, piece by piece through the first-level cache.
template <int kSources>
class Reduction {
 public:
  Reduction(Dimensions to, Dimensions shape, ElementwiseLoop* loop,
            const std::array<Operand, kSources>& operands, const Combination& combination)
      : loop_(loop), combination_(combination) {
    std::array<Dimensions, kSources + 1> shapes;
    for (int s = 0; s < kSources; ++s) {
      data_[s] = operands[s].data;
      shapes[s] = operands[s].dimensions;
    }
    shapes[kSources] = to;
    const LoopNest<kSources + 1> nest = MakeLoopNest<kSources + 1>(shape, shapes);
    const int inner = nest.rank - 1;
    columns_ = nest.sizes[inner];
    columns_are_kept_ = nest.strides[kSources][inner] != 0;
    for (int s = 0; s < kSources; ++s) repeats_ |= (nest.strides[s][inner] == 0) << s;
    for (int d = 0; d < inner; ++d) {
      std::array<int64_t, kSources> step;
      for (int s = 0; s < kSources; ++s) step[s] = nest.strides[s][d];
      (nest.strides[kSources][d] != 0 ? kept_ : reduced_).Append(nest.sizes[d], step);
    }
  }

  // y is contiguous: its elements are the kept loops' iterations in order.
  void Run(float* y, double factor) const {
    const int64_t outputs = kept_.iterations() * (columns_are_kept_ ? columns_ : 1);
    // Few outputs of many elements are cut into parts, by a rule that depends only on the shapes.
    const int64_t rows = reduced_.iterations();
    const int64_t parts_max = columns_are_kept_ ? (rows + kRowsInFloat - 1) / kRowsInFloat
                                                : (rows * columns_ + 4095) / 4096;
    const int64_t parts =
        outputs >= 256 ? 1
                       : std::clamp<int64_t>(rows * columns_ * kept_.iterations() / (1 << 15), 1,
                                             std::min<int64_t>(parts_max, 32));
    if (parts == 1) {
      RunPart(0, 1, outputs, [=](int64_t output, double total) {
        y[output] = static_cast<float>(total * factor);
      });
      return;
    }
    std::vector<double> totals(parts * outputs);
    ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        RunPart(part, parts, outputs,
                [&](int64_t output, double total) { totals[part * outputs + output] = total; });
      }
    });
    for (int64_t output = 0; output < outputs; ++output) {
      double total = totals[output];
      for (int64_t part = 1; part < parts; ++part) {
        total = combination_.pair(total, totals[part * outputs + output]);
      }
      y[output] = static_cast<float>(total * factor);
    }
  }

 private:
  // Calls put(output, total over this part) for every output.
  template <typename Put>
  void RunPart(int64_t part, int64_t parts, int64_t outputs, Put put) const {
    const int64_t rows = reduced_.iterations();
    if (columns_are_kept_) {
      // Wide panels read memory in longer runs; their width does not change a column's sum.
      const int64_t threads = parts == 1 ? ParallelThreads() : 1;
      const int64_t share = (columns_ + threads - 1) / threads;
      const int64_t width = std::clamp<int64_t>((share + 15) / 16 * 16, 16, kPanel);
      const int64_t panels = (columns_ + width - 1) / width;
      const int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
      const int64_t grain = std::max<int64_t>(1, kGrain / (width * rows));
      ParallelFor(kept_.iterations() * panels, grain, [&](int64_t first, int64_t last) {
        for (int64_t task = first; task < last; ++task) {
          const int64_t column = task % panels * width;
          Panel(task / panels, column, std::min(width, columns_ - column), begin, end, put);
        }
      });
    } else {
      const int64_t elements = rows * columns_;
      const int64_t begin = elements * part / parts, end = elements * (part + 1) / parts;
      const int64_t grain = std::max<int64_t>(1, kGrain / elements);
      ParallelFor(outputs, grain, [&](int64_t first, int64_t last) {
        NestCursor<kSources> kept(kept_, first);
        for (int64_t output = first; output < last; ++output, kept.Next()) {
          put(output, Total(kept, begin, end));
        }
      });
    }
  }

  // Returns n elements of a row, starting at `column`. They are in `buffer` if they are computed.
  const float* Row(const NestCursor<kSources>& kept, const NestCursor<kSources>& reduced,
                   int64_t column, int64_t n, float* buffer) const {
    const float* sources[kSources];
    for (int s = 0; s < kSources; ++s) {
      sources[s] = data_[s] + kept.offset(s) + reduced.offset(s) + (repeats_ >> s & 1 ? 0 : column);
    }
    if (loop_ == nullptr && repeats_ == 0) return sources[0];
    (loop_ == nullptr ? Elementwise().copy : loop_)(buffer, sources, repeats_, n);
    return buffer;
  }

  // Reduces elements [begin, end) of the reduced loops, with the columns innermost.
  double Total(const NestCursor<kSources>& kept, int64_t begin, int64_t end) const {
    constexpr int64_t kChunk = 1024;
    float buffer[kChunk];
    double total = combination_.start;
    NestCursor<kSources> reduced(reduced_, begin / columns_);
    int64_t column = begin % columns_;
    while (begin < end) {
      const int64_t n = std::min({columns_ - column, end - begin, kChunk});
      total = combination_.pair(total, combination_.row(Row(kept, reduced, column, n, buffer), n));
      begin += n;
      column += n;
      if (column == columns_) {
        column = 0;
        reduced.Next();
      }
    }
    return total;
  }

  // Reduces columns [column, column + n) of kept iteration `kept_index` over the rows [begin, end).
  template <typename Put>
  void Panel(int64_t kept_index, int64_t column, int64_t n, int64_t begin, int64_t end,
             Put put) const {
    const NestCursor<kSources> kept(kept_, kept_index);
    NestCursor<kSources> reduced(reduced_, begin);
    const float start = static_cast<float>(combination_.start);
    float buffers[kRowsAtOnce][kPanel], absent[kPanel], sums[kPanel];
    double totals[kPanel];
    std::fill_n(absent, n, start);
    std::fill_n(totals, n, combination_.start);
    while (begin < end) {
      std::fill_n(sums, n, start);
      for (const int64_t stop = std::min(end, begin + kRowsInFloat); begin < stop;) {
        const float* rows[kRowsAtOnce];
        for (int r = 0; r < kRowsAtOnce; ++r) {
          rows[r] = absent;
          if (begin < stop) {
            rows[r] = Row(kept, reduced, column, n, buffers[r]);
            reduced.Next();
            ++begin;
          }
        }
        combination_.rows(sums, rows, n);
      }
      for (int64_t i = 0; i < n; ++i) totals[i] = combination_.pair(totals[i], sums[i]);
    }
    for (int64_t i = 0; i < n; ++i) put(kept_index * columns_ + column + i, totals[i]);
  }

  ElementwiseLoop* loop_;
  Combination combination_;
  std::array<const float*, kSources> data_;
  LoopNest<kSources> kept_, reduced_;  // all loops except the innermost
  int64_t columns_;                    // the innermost loop
  bool columns_are_kept_;
  unsigned repeats_ = 0;  // bits of the sources that repeat along the columns
};

template <int kSources>
void Sum(float* y, Dimensions to, Dimensions shape, const MappedSum& sum) {
  std::array<Operand, kSources> operands;
  std::copy_n(sum.operands.begin(), kSources, operands.begin());
  Reduction<kSources>(to, shape, sum.loop, operands, Sums()).Run(y, sum.factor);
}

}  // namespace

const ElementwiseLoops& Elementwise() {
  return ForThisProcessor(baseline::kElementwiseLoops, avx2::kElementwiseLoops,
                          avx512::kElementwiseLoops);
}

void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a) {
  Map<1>(loop, y, shape, {a});
}

void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a,
                 const Operand& b) {
  Map<2>(loop, y, shape, {a, b});
}

void MapElements(ElementwiseLoop* loop, float* y, Dimensions shape, const Operand& a,
                 const Operand& b, const Operand& c) {
  Map<3>(loop, y, shape, {a, b, c});
}

void SumElements(float* y, Dimensions to, Dimensions shape, const MappedSum& sum) {
  const auto& [a, b, c] = sum.operands;
  if (Elements(to) == Elements(shape) && sum.factor == 1) {
    ElementwiseLoop* loop = sum.loop == nullptr ? Elementwise().copy : sum.loop;
    if (sum.sources == 1) return MapElements(loop, y, shape, a);
    if (sum.sources == 2) return MapElements(loop, y, shape, a, b);
    return MapElements(loop, y, shape, a, b, c);
  }
  if (sum.sources == 1) return Sum<1>(y, to, shape, sum);
  if (sum.sources == 2) return Sum<2>(y, to, shape, sum);
  return Sum<3>(y, to, shape, sum);
}

void MaxElements(float* y, Dimensions to, const Operand& x) {
  Reduction<1>(to, x.dimensions, nullptr, {x}, Maxima()).Run(y, 1);
}

}  // namespace muster::kernels
