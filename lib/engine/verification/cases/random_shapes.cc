// Random shapes and attributes, to find cases that the tables miss. One dimension in three is 1.
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/engine/verification/operator_case.h"
#include "lib/engine/verification/sketch.h"

namespace muster::verification {
namespace {

using Shape = std::vector<int64_t>;

class RandomCases {
 public:
  std::vector<OperatorCase> Draw(int rounds) && {
    for (int round = 0; round < rounds; ++round) {
      AddConvolution();
      AddPools();
      AddBroadcasts();
      AddReductions();
      AddMatrixProducts();
      AddMoves();
      AddNorms();
      AddAttention();
      AddRecurrence("Lstm", /*gates=*/4);
      AddRecurrence("Gru", /*gates=*/3);
    }
    return std::move(cases_);
  }

 private:
  // Returns a number in [low, high]. std::uniform_int_distribution would draw different numbers
  // with each standard library.
  int64_t Number(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(generator_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance() { return Number(0, 1) == 1; }

  Shape RandomShape(int64_t rank_min, int64_t rank_max, int64_t size_max) {
    Shape shape(Number(rank_min, rank_max));
    for (int64_t& size : shape) size = Number(0, 2) == 0 ? 1 : Number(1, size_max);
    return shape;
  }

  // Returns `axis`, or the same axis counted from the end.
  int64_t EitherSign(int64_t axis, const Shape& shape) {
    return Chance() ? axis : axis - static_cast<int64_t>(shape.size());
  }

  void Add(std::string op, std::vector<Operand> inputs, SketchAttributes attributes = {},
           std::vector<int> losses = {0}) {
    cases_.push_back({std::move(op), std::move(inputs), std::move(attributes), std::move(losses),
                      /*amplification=*/4});
  }

  void AddConvolution() {
    const int64_t groups = Number(1, 3), inputs = Number(1, 3), outputs = groups * Number(1, 6);
    const Shape kernel = {Number(1, 4), Number(1, 4)}, dilations = {Number(1, 2), Number(1, 3)};
    const Shape padding = PaddingWithin(kernel);
    auto size = [&](int k) { return dilations[k] * (kernel[k] - 1) + 1 + Number(0, 6); };
    std::vector<Operand> operands = {Shape{Number(1, 3), groups * inputs, size(0), size(1)},
                                     Shape{outputs, inputs, kernel[0], kernel[1]}};
    if (Chance()) operands.push_back({outputs});
    Add("Conv2d", operands,
        {{"strides", Shape{Number(1, 3), Number(1, 3)}},
         {"padding", padding},
         {"dilations", dilations},
         {"groups", static_cast<int>(groups)}});
  }

  Shape PaddingWithin(const Shape& kernel) {
    return {Number(0, kernel[0] - 1), Number(0, kernel[1] - 1), Number(0, kernel[0] - 1),
            Number(0, kernel[1] - 1)};
  }

  void AddPools() {
    for (const char* op : {"MaxPool2d", "AveragePool2d"}) {
      const Shape kernel = {Number(1, 4), Number(1, 4)};
      SketchAttributes attributes = {{"kernel", kernel},
                                     {"strides", Shape{Number(1, 4), Number(1, 4)}},
                                     {"padding", PaddingWithin(kernel)},
                                     {"ceil", Chance() ? 1 : 0}};
      if (op[0] == 'A') attributes.emplace_back("count_padding", Chance() ? 1 : 0);
      Add(op,
          {Shape{Number(1, 2), Number(1, 18), kernel[0] + Number(0, 6), kernel[1] + Number(0, 6)}},
          attributes);
    }
  }

  // Returns two shapes that broadcast to `shape`.
  std::pair<Shape, Shape> Broadcasting(const Shape& shape) {
    Shape a = shape, b = shape;
    for (size_t k = 0; k < shape.size(); ++k) {
      const int64_t which = Number(0, 3);
      if (which == 0) a[k] = 1;
      if (which == 1) b[k] = 1;
    }
    Shape& shorter = Chance() ? a : b;
    if (Chance() && !shape.empty()) {
      shorter.erase(shorter.begin(), shorter.begin() + Number(0, shape.size() - 1));
    }
    return {a, b};
  }

  void AddBroadcasts() {
    const Shape shape = RandomShape(1, 5, 5);
    const auto [a, b] = Broadcasting(shape);
    for (const char* op : {"Add", "Sub", "Mul"}) Add(op, {a, b});
    Add("Div", {a, Positive(b)});
    Add("Pow", {Positive(a), b});
    Add("Where", {ConstantIds(Broadcasting(shape).first, 0, 2), a, b});
    Add("Expand", {a}, {{"shape", shape}});
  }

  void AddReductions() {
    const Shape shape = RandomShape(1, 5, 6);
    Shape axes;
    for (size_t k = 0; k < shape.size(); ++k) {
      if (Chance()) axes.push_back(EitherSign(k, shape));
    }
    if (axes.empty()) axes.push_back(0);
    std::reverse(axes.begin(), axes.end());
    for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax"}) {
      Add(op, {shape}, {{"axes", axes}, {"keep", Chance() ? 1 : 0}});
    }
  }

  void AddMatrixProducts() {
    auto [a, b] = Broadcasting(RandomShape(0, 3, 3));
    const int64_t rows = Number(1, 9), inner = Number(1, 9), columns = Number(1, 9);
    const bool transpose_a = Chance(), transpose_b = Chance();
    auto append = [](Shape& shape, int64_t first, int64_t second, bool transpose) {
      if (transpose) std::swap(first, second);
      shape.push_back(first);
      shape.push_back(second);
    };
    append(a, rows, inner, transpose_a);
    append(b, inner, columns, transpose_b);
    Add("MatMul", {a, b},
        {{"transpose_a", transpose_a ? 1 : 0}, {"transpose_b", transpose_b ? 1 : 0}});

    const Shape x = RandomShape(1, 4, 5);
    Add("Linear", {x, Shape{Number(1, 20), x.back()}});
  }

  void AddMoves() {
    const Shape shape = RandomShape(1, 5, 6);
    Shape permutation, axes, starts, ends, steps, padding;
    for (size_t k = 0; k < shape.size(); ++k) {
      permutation.insert(permutation.begin() + Number(0, k), k);
      padding.push_back(Number(0, 2));
      padding.push_back(Number(0, 2));
      if (Chance()) continue;
      const int64_t start = Number(0, shape[k] - 1), end = Number(start + 1, shape[k]);
      axes.push_back(EitherSign(k, shape));
      starts.push_back(Chance() ? start : start - shape[k]);
      ends.push_back(end < shape[k] && Chance() ? end - shape[k] : end);
      steps.push_back(Number(1, 3));
    }
    Add("Transpose", {shape}, {{"permutation", permutation}});
    Add("Pad", {shape}, {{"padding", padding}, {"value", 0.5}});
    if (!axes.empty()) {
      Add("Slice", {shape}, {{"axes", axes}, {"starts", starts}, {"ends", ends}, {"steps", steps}});
    }

    const auto axis = static_cast<int64_t>(Number(0, shape.size() - 1));
    const auto attribute = static_cast<int>(EitherSign(axis, shape));
    Shape sizes, whole = shape;
    std::vector<Operand> parts;
    std::vector<int> losses;
    whole[axis] = 0;
    for (int64_t part = Number(1, 4); part > 0; --part) {
      sizes.push_back(Number(1, 5));
      whole[axis] += sizes.back();
      Shape part_shape = shape;
      part_shape[axis] = sizes.back();
      parts.push_back(part_shape);
      if (losses.empty() || Chance()) losses.push_back(static_cast<int>(sizes.size()) - 1);
    }
    Add("Concat", parts, {{"axis", attribute}});
    Add("Split", {whole}, {{"axis", attribute}, {"sizes", sizes}}, losses);
    const auto size = static_cast<double>(shape[axis]);
    Add("Gather", {shape, Ids(RandomShape(1, 2, 4), -size, size)}, {{"axis", attribute}});
  }

  void AddNorms() {
    Shape rows = RandomShape(1, 3, 6);
    const int64_t channels = rows.back() = Number(2, 40);
    Add("Softmax", {rows});
    Add("LogSoftmax", {rows});
    Add("RmsNorm", {rows, Shape{channels}});
    std::vector<Operand> operands = {rows, Shape{channels}};
    if (Chance()) operands.push_back({channels});
    Add("LayerNorm", operands);

    const int64_t groups = Number(1, 4), grouped = groups * Number(2, 5);
    Shape image = {Number(3, 5), grouped};
    for (int64_t k = Number(0, 3); k > 0; --k) image.push_back(Number(1, 4));
    // The large epsilon keeps few values with nearly the same mean from amplifying rounding errors.
    Add("GroupNorm", {image, Shape{grouped}, Shape{grouped}},
        {{"groups", static_cast<int>(groups)}, {"epsilon", 1e-2}});
    operands = {image, Statistic(Shape{grouped}), Statistic(Shape{grouped}), Shape{grouped}};
    if (Chance()) operands.push_back({grouped});
    Add("BatchNorm", operands, {{"epsilon", 1e-2}});
  }

  void AddAttention() {
    const int64_t heads = Number(1, 3), batch = Number(1, 3), queries = Number(1, 7),
                  keys = queries + Number(0, 4), channels = heads * Number(1, 5);
    auto with_mask = [&](std::vector<Operand> operands, int64_t columns) {
      if (Chance()) {
        operands.push_back(
            Constant(Shape{1, Chance() ? heads : 1, Chance() ? queries : 1, columns}));
      }
      return operands;
    };
    const SketchAttributes attributes = {{"heads", static_cast<int>(heads)},
                                         {"causal", Chance() ? 1 : 0}};
    Add("SelfAttention", with_mask({Shape{batch, queries, 3 * channels}}, queries), attributes);
    Add("Attention",
        with_mask({Shape{batch, queries, channels}, Shape{batch, keys, channels},
                   Shape{batch, keys, heads * Number(1, 5)}},
                  keys),
        attributes);
  }

  void AddRecurrence(const char* op, int64_t gates) {
    const int64_t directions = Number(1, 2), batch = Number(1, 3), steps = Number(1, 6),
                  inputs = Number(1, 6), hidden = Number(1, 6);
    const Shape state = {directions, batch, hidden};
    std::vector<Operand> operands = {
        Shape{batch, steps, inputs}, Shape{directions, gates * hidden, inputs},
        Shape{directions, gates * hidden, hidden}, Shape{directions, 2 * gates * hidden}};
    const int64_t states = gates == 4 ? 2 : 1;
    for (int64_t k = Number(0, states); k > 0; --k) operands.push_back(state);
    std::vector<int> losses;
    for (int output = static_cast<int>(Number(0, states)); output <= states; ++output) {
      losses.push_back(output);
    }
    SketchAttributes attributes;
    if (directions == 1 && Chance()) attributes.emplace_back("reverse", 1);
    Add(op, operands, attributes, losses);
  }

  std::mt19937_64 generator_{20};
  std::vector<OperatorCase> cases_;
};

const OperatorFamily kFamily("random_shapes", [] { return RandomCases().Draw(/*rounds=*/8); });

}  // namespace
}  // namespace muster::verification
