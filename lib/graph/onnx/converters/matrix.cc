#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "lib/graph/onnx/converters/converters.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::NodeProto;

absl::StatusOr<std::string> Scaled(OnnxImporter& im, const NodeProto& node, const std::string& x,
                                   double factor) {
  if (factor == 1) return x;
  ASSIGN_OR_RETURN(const std::string y, im.Scalar(node, factor, true));
  return im.Make(node, "Mul", {x, y});
}

absl::Status Gemm(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(const std::string a, im.Tensor(node, 0));
  ASSIGN_OR_RETURN(const std::string b, im.Tensor(node, 1));
  const int64_t transpose_a = Integer(node, "transA", 0);
  const int64_t transpose_b = Integer(node, "transB", 0);
  const double alpha = Number(node, "alpha", 1), beta = Number(node, "beta", 1);
  const bool has_bias = HasInput(node, 2) && beta != 0;
  std::string bias;
  if (has_bias) {
    ASSIGN_OR_RETURN(bias, im.Operand(node, 2));
    ASSIGN_OR_RETURN(bias, Scaled(im, node, bias, beta));
  }
  if (transpose_a == 0 && transpose_b == 1 && alpha == 1) {
    std::vector<std::string> inputs = {a, b};
    bool vector = true;
    if (has_bias) {
      ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(bias));
      ASSIGN_OR_RETURN(const std::vector<Extent> weight, im.ShapeOf(b));
      vector = shape.size() == 1 && weight.size() == 2 && shape[0] == weight[0];
      inputs.push_back(bias);
    }
    if (vector) return im.Add(node, "Linear", inputs, {im.Output(node, 0)});
  }
  ASSIGN_OR_RETURN(std::string product, im.Make(node, "MatMul", {a, b},
                                                {{"transpose_a", IntegerValue(transpose_a)},
                                                 {"transpose_b", IntegerValue(transpose_b)}}));
  ASSIGN_OR_RETURN(product, Scaled(im, node, product, alpha));
  if (has_bias) return im.Add(node, "Add", {product, bias}, {im.Output(node, 0)});
  im.Alias(node, 0, product);
  return absl::OkStatus();
}

// A vector on the left is a matrix of one row, on the right of one column.
absl::Status MatMul(OnnxImporter& im, const NodeProto& node) {
  ASSIGN_OR_RETURN(std::string a, im.Operand(node, 0));
  ASSIGN_OR_RETURN(std::string b, im.Operand(node, 1));
  ASSIGN_OR_RETURN(const int64_t rank_a, im.Rank(node, 0));
  ASSIGN_OR_RETURN(const int64_t rank_b, im.Rank(node, 1));
  if (rank_a == 0 || rank_b == 0) return NodeFault(node, "multiplies a number");
  if (rank_a > 1 && rank_b > 1) return im.Add(node, "MatMul", {a, b}, {im.Output(node, 0)});
  if (rank_a == 1) {
    ASSIGN_OR_RETURN(a, im.Make(node, "Unsqueeze", {a}, {{"axes", IntegersValue({0})}}));
  }
  if (rank_b == 1) {
    ASSIGN_OR_RETURN(b, im.Make(node, "Unsqueeze", {b}, {{"axes", IntegersValue({1})}}));
  }
  ASSIGN_OR_RETURN(const std::string product, im.Make(node, "MatMul", {a, b}));
  std::vector<int64_t> axes;
  if (rank_b == 1) axes.push_back(-1);
  if (rank_a == 1) axes.push_back(-2);
  return im.Add(node, "Squeeze", {product}, {im.Output(node, 0)}, {{"axes", IntegersValue(axes)}});
}

// ---------------------------------------------------------------- Einsum

// A tensor with a letter for each dimension.
struct Lettered {
  std::string tensor;
  std::string letters;
};

using Sizes = std::map<char, Extent>;

absl::StatusOr<Lettered> Permuted(OnnxImporter& im, const NodeProto& node, const Lettered& x,
                                  const std::string& letters) {
  std::vector<int64_t> permutation;
  for (char letter : letters) permutation.push_back(x.letters.find(letter));
  ASSIGN_OR_RETURN(std::string y, im.Transposed(node, x.tensor, permutation));
  return Lettered{std::move(y), letters};
}

// Sums over the dimensions that neither the other operands nor the result have.
absl::StatusOr<Lettered> Summed(OnnxImporter& im, const NodeProto& node, Lettered x,
                                const std::string& wanted) {
  std::vector<int64_t> axes;
  std::string letters;
  for (size_t d = 0; d < x.letters.size(); ++d) {
    if (wanted.find(x.letters[d]) == std::string::npos) {
      axes.push_back(static_cast<int64_t>(d));
    } else {
      letters += x.letters[d];
    }
  }
  if (axes.empty()) return x;
  ASSIGN_OR_RETURN(std::string y,
                   im.Make(node, "ReduceSum", {x.tensor},
                           {{"axes", IntegersValue(axes)}, {"keep", IntegerValue(0)}}));
  return Lettered{std::move(y), std::move(letters)};
}

Extent Product(const std::string& letters, const Sizes& sizes) {
  Extent product{1};
  for (char letter : letters) {
    product.value *= sizes.at(letter).value;
    product.of_batch = product.of_batch || sizes.at(letter).of_batch;
  }
  return product;
}

// Makes one batched matrix product: [both and kept, only a, summed] x [both and kept, summed, only
// b].
absl::StatusOr<Lettered> Contracted(OnnxImporter& im, const NodeProto& node, const Lettered& a,
                                    const Lettered& b, const std::string& wanted,
                                    const Sizes& sizes) {
  std::string batch, rows, columns, inner;
  const auto has = [](const std::string& letters, char letter) {
    return letters.find(letter) != std::string::npos;
  };
  for (char letter : a.letters) {
    (!has(b.letters, letter) ? rows : has(wanted, letter) ? batch : inner) += letter;
  }
  for (char letter : b.letters) {
    if (!has(a.letters, letter)) columns += letter;
  }
  ASSIGN_OR_RETURN(const Lettered left, Permuted(im, node, a, batch + rows + inner));
  ASSIGN_OR_RETURN(const Lettered right, Permuted(im, node, b, batch + inner + columns));
  const Extent m = Product(rows, sizes), k = Product(inner, sizes), n = Product(columns, sizes);
  std::vector<Extent> outer;
  for (char letter : batch) outer.push_back(sizes.at(letter));
  const auto with = [&](std::initializer_list<Extent> matrix) {
    std::vector<Extent> shape = outer;
    shape.insert(shape.end(), matrix.begin(), matrix.end());
    return shape;
  };
  ASSIGN_OR_RETURN(const std::string x, im.Reshaped(node, left.tensor, with({m, k})));
  ASSIGN_OR_RETURN(const std::string w, im.Reshaped(node, right.tensor, with({k, n})));
  ASSIGN_OR_RETURN(const std::string product, im.Make(node, "MatMul", {x, w}));
  Lettered y{.letters = batch + rows + columns};
  std::vector<Extent> shape;
  for (char letter : y.letters) shape.push_back(sizes.at(letter));
  ASSIGN_OR_RETURN(y.tensor, im.Reshaped(node, product, shape));
  return y;
}

absl::Status Einsum(OnnxImporter& im, const NodeProto& node) {
  std::string equation = absl::StrReplaceAll(Word(node, "equation", ""), {{" ", ""}});
  std::vector<std::string> sides = absl::StrSplit(equation, "->");
  const std::vector<std::string> terms = absl::StrSplit(sides[0], ',');
  if (sides.size() > 2 || std::ssize(terms) != node.input_size()) {
    return NodeFault(node, absl::StrCat("has the equation '", equation, "'"));
  }
  // Dimensions of "..." get letters of their own, counted from the last.
  Sizes sizes;
  std::vector<Lettered> operands;
  std::string ellipsis;
  for (int i = 0; i < node.input_size(); ++i) {
    ASSIGN_OR_RETURN(const std::string x, im.Tensor(node, i));
    ASSIGN_OR_RETURN(const std::vector<Extent> shape, im.ShapeOf(x));
    std::string letters = terms[i];
    if (const size_t dots = letters.find("..."); dots != std::string::npos) {
      const int64_t count = std::ssize(shape) - (std::ssize(letters) - 3);
      if (count < 0 || count > 10) return NodeFault(node, "has operands that do not fit");
      std::string own;
      for (int64_t d = count; d > 0; --d) own += static_cast<char>('0' + d - 1);
      if (own.size() > ellipsis.size()) ellipsis = own;
      letters.replace(dots, 3, own);
    }
    if (letters.size() != shape.size()) return NodeFault(node, "has operands that do not fit");
    for (size_t d = 0; d < letters.size(); ++d) {
      if (std::ranges::count(letters, letters[d]) > 1) return NodeFault(node, "takes a diagonal");
      const auto [known, added] = sizes.emplace(letters[d], shape[d]);
      if (!added && known->second != shape[d]) {
        return NodeFault(node, "has operands that broadcast or do not fit");
      }
    }
    operands.push_back({x, letters});
  }
  std::string result;
  if (sides.size() == 2) {
    result = sides[1];
    if (const size_t dots = result.find("..."); dots != std::string::npos) {
      result.replace(dots, 3, ellipsis);
    }
  } else {
    // The result without an arrow has the letters that occur once, in alphabetical order.
    result = ellipsis;
    for (char c = 'A'; c <= 'z'; ++c) {
      if (absl::ascii_isalpha(c) && std::ranges::count(sides[0], c) == 1) result += c;
    }
  }
  Lettered y = operands[0];
  for (size_t i = 0; i < operands.size(); ++i) {
    std::string wanted = result;
    for (size_t later = i + 1; later < operands.size(); ++later) wanted += operands[later].letters;
    if (i == 0) {
      ASSIGN_OR_RETURN(y, Summed(im, node, y, wanted));
      continue;
    }
    ASSIGN_OR_RETURN(const Lettered x, Summed(im, node, operands[i], wanted + y.letters));
    ASSIGN_OR_RETURN(y, Contracted(im, node, y, x, wanted, sizes));
    ASSIGN_OR_RETURN(y, Summed(im, node, y, wanted));
  }
  if (y.letters.size() != result.size()) {
    return NodeFault(node, absl::StrCat("has the equation '", equation, "'"));
  }
  ASSIGN_OR_RETURN(y, Permuted(im, node, y, result));
  im.Alias(node, 0, y.tensor);
  return absl::OkStatus();
}

}  // namespace

void AddMatrixConverters(ConverterTable& table) {
  table["Einsum"] = Einsum;
  table["Gemm"] = Gemm;
  table["MatMul"] = MatMul;
}

}  // namespace muster
