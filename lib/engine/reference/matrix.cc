// Linear and MatMul.
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

std::vector<Tensor> Linear(const Call& call) {
  const Tensor &x = call[0], &w = call[1];
  CHECK_EQ(x.last(), w.shape[1]);
  const Shape shape = With(x.shape, x.rank() - 1, w.shape[0]);
  return {Generate(shape, [&](const Index& index) {
    const int64_t o = index.back();
    double sum = call.has(2) ? call[2]({o}) : 0;
    for (int64_t i = 0; i < x.last(); ++i) sum += x(With(index, x.rank() - 1, i)) * w({o, i});
    return sum;
  })};
}

Tensor TransposeLastTwo(const Tensor& x) {
  Shape shape = x.shape;
  std::swap(shape[x.rank() - 2], shape[x.rank() - 1]);
  return Generate(shape, [&](Index index) {
    std::swap(index[x.rank() - 2], index[x.rank() - 1]);
    return x(index);
  });
}

std::vector<Tensor> MatMul(const Call& call) {
  const Tensor a = call.Integer("transpose_a", 0) ? TransposeLastTwo(call[0]) : call[0];
  const Tensor b = call.Integer("transpose_b", 0) ? TransposeLastTwo(call[1]) : call[1];
  const int64_t rows = a.shape[a.rank() - 2], inner = a.last(), columns = b.last();
  CHECK_EQ(inner, b.shape[b.rank() - 2]);
  Shape shape =
      BroadcastShapes({a.shape.begin(), a.shape.end() - 2}, {b.shape.begin(), b.shape.end() - 2});
  shape.push_back(rows);
  shape.push_back(columns);
  const int64_t rank = static_cast<int64_t>(shape.size());
  return {Generate(shape, [&](const Index& index) {
    double sum = 0;
    for (int64_t k = 0; k < inner; ++k) {
      sum += a.Broadcast(With(index, rank - 1, k)) * b.Broadcast(With(index, rank - 2, k));
    }
    return sum;
  })};
}

}  // namespace

void AddMatrixProducts(Operators& operators) {
  operators["Linear"] = Linear;
  operators["MatMul"] = MatMul;
}

}  // namespace muster::reference
