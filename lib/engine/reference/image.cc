// Convolution and pooling.
#include <algorithm>
#include <limits>
#include <vector>

#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

// One spatial dimension of a window that slides over an image.
struct Slide {
  int64_t size, kernel, stride, before, after, dilation = 1;
  bool ceil = false;

  int64_t positions() const {
    const int64_t room = size + before + after - dilation * (kernel - 1) - 1;
    int64_t positions = (ceil ? (room + stride - 1) / stride : room / stride) + 1;
    // The last window starts inside the image or in the padding before it, as in PyTorch.
    if (ceil && (positions - 1) * stride >= size + before) --positions;
    return positions;
  }
  // Returns the pixel under element `k` of the window at `position`. It may be in the padding.
  int64_t Pixel(int64_t position, int64_t k) const {
    return position * stride - before + k * dilation;
  }
  bool Inside(int64_t pixel) const { return pixel >= 0 && pixel < size; }
};

std::vector<Tensor> Conv2d(const Call& call) {
  const Tensor &x = call[0], &w = call[1];
  const auto strides = call.Integers("strides", {1, 1});
  const auto padding = call.Integers("padding", {0, 0, 0, 0});
  const auto dilations = call.Integers("dilations", {1, 1});
  const int64_t groups = call.Integer("groups", 1);
  const Slide rows{x.shape[2], w.shape[2], strides[0], padding[0], padding[2], dilations[0]};
  const Slide columns{x.shape[3], w.shape[3], strides[1], padding[1], padding[3], dilations[1]};
  const int64_t outputs = w.shape[0], group_inputs = w.shape[1];

  return {Generate(
      {x.shape[0], outputs, rows.positions(), columns.positions()}, [&](const Index& index) {
        const int64_t o = index[1], first_input = o / (outputs / groups) * group_inputs;
        double sum = call.has(2) ? call[2]({o}) : 0;
        for (int64_t c = 0; c < group_inputs; ++c) {
          for (int64_t k = 0; k < rows.kernel; ++k) {
            for (int64_t l = 0; l < columns.kernel; ++l) {
              const int64_t row = rows.Pixel(index[2], k), column = columns.Pixel(index[3], l);
              if (!rows.Inside(row) || !columns.Inside(column)) continue;
              sum += x({index[0], first_input + c, row, column}) * w({o, c, k, l});
            }
          }
        }
        return sum;
      })};
}

// Reverses Conv2d: adds the product of a pixel and a weight to the place that Conv2d would read it
// from.
std::vector<Tensor> ConvTranspose2d(const Call& call) {
  const Tensor &x = call[0], &w = call[1];
  const auto strides = call.Integers("strides", {1, 1});
  const auto padding = call.Integers("padding", {0, 0, 0, 0});
  const auto dilations = call.Integers("dilations", {1, 1});
  const auto more = call.Integers("output_padding", {0, 0});
  const int64_t groups = call.Integer("groups", 1);
  const int64_t group_inputs = x.shape[1] / groups, group_outputs = w.shape[1];
  auto size = [&](int side) {
    return (x.shape[2 + side] - 1) * strides[side] + (w.shape[2 + side] - 1) * dilations[side] + 1 +
           more[side] - padding[side] - padding[2 + side];
  };
  Tensor y = Generate({x.shape[0], groups * group_outputs, size(0), size(1)},
                      [&](const Index& index) { return call.has(2) ? call[2]({index[1]}) : 0; });
  ForEach(x.shape, [&](const Index& at) {
    ForEach({group_outputs, w.shape[2], w.shape[3]}, [&](const Index& tap) {
      const int64_t row = at[2] * strides[0] + tap[1] * dilations[0] - padding[0];
      const int64_t column = at[3] * strides[1] + tap[2] * dilations[1] - padding[1];
      if (row < 0 || row >= y.shape[2] || column < 0 || column >= y.shape[3]) return;
      y.at({at[0], at[1] / group_inputs * group_outputs + tap[0], row, column}) +=
          x(at) * w({at[1], tap[0], tap[1], tap[2]});
    });
  });
  return {y};
}

struct Window {
  Slide rows, columns;

  explicit Window(const Call& call) {
    const Tensor& x = call[0];
    const auto kernel = call.Integers("kernel", {});
    const auto strides = call.Integers("strides", kernel);
    const auto padding = call.Integers("padding", {0, 0, 0, 0});
    const bool ceil = call.Integer("ceil", 0);
    const auto dilations = call.Integers("dilations", {1, 1});
    rows = {x.shape[2], kernel[0], strides[0], padding[0], padding[2], dilations[0], ceil};
    columns = {x.shape[3], kernel[1], strides[1], padding[1], padding[3], dilations[1], ceil};
  }

  Shape output(const Tensor& x) const {
    return {x.shape[0], x.shape[1], rows.positions(), columns.positions()};
  }

  // Calls f(value) for each pixel of the window at `index` that is inside the image.
  template <typename F>
  void ForEachPixel(const Tensor& x, const Index& index, F f) const {
    for (int64_t k = 0; k < rows.kernel; ++k) {
      for (int64_t l = 0; l < columns.kernel; ++l) {
        const int64_t row = rows.Pixel(index[2], k), column = columns.Pixel(index[3], l);
        if (rows.Inside(row) && columns.Inside(column)) f(x({index[0], index[1], row, column}));
      }
    }
  }

  // Returns the number of elements of the window at `index` inside the image or its padding. A
  // window that `ceil` lets extend further counts only up to the end of the padding, as in PyTorch.
  int64_t PaddedElements(const Index& index) const {
    auto length = [](const Slide& slide, int64_t position) {
      const int64_t first = slide.Pixel(position, 0);
      return std::min(first + slide.kernel, slide.size + slide.after) - first;
    };
    return length(rows, index[2]) * length(columns, index[3]);
  }
};

std::vector<Tensor> MaxPool2d(const Call& call) {
  const Window window(call);
  return {Generate(window.output(call[0]),
                   [&](const Index& index) {
                     double max = -std::numeric_limits<double>::infinity();
                     window.ForEachPixel(call[0], index,
                                         [&](double value) { max = std::max(max, value); });
                     return max;
                   }),
          State()};
}

std::vector<Tensor> AveragePool2d(const Call& call) {
  const Window window(call);
  const bool count_padding = call.Integer("count_padding", 0);
  return {Generate(window.output(call[0]), [&](const Index& index) {
    double sum = 0;
    int64_t pixels = 0;
    window.ForEachPixel(call[0], index, [&](double value) {
      sum += value;
      ++pixels;
    });
    return sum / static_cast<double>(count_padding ? window.PaddedElements(index) : pixels);
  })};
}

std::vector<Tensor> GlobalAveragePool2d(const Call& call) {
  const Tensor& x = call[0];
  return {Generate({x.shape[0], x.shape[1]}, [&](const Index& index) {
    double sum = 0;
    ForEach({x.shape[2], x.shape[3]}, [&](const Index& pixel) {
      sum += x({index[0], index[1], pixel[0], pixel[1]});
    });
    return sum / static_cast<double>(x.shape[2] * x.shape[3]);
  })};
}

}  // namespace

void AddImageOperators(Operators& operators) {
  operators["Conv2d"] = Conv2d;
  operators["ConvTranspose2d"] = ConvTranspose2d;
  operators["MaxPool2d"] = MaxPool2d;
  operators["AveragePool2d"] = AveragePool2d;
  operators["GlobalAveragePool2d"] = GlobalAveragePool2d;
}

}  // namespace muster::reference
