#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  return {
      {"Linear", {{1, 1}, {1, 1}, {1}}},
      {"Linear", {{3, 5}, {7, 5}, {7}}},
      {"Linear", {{3, 5}, {7, 5}}},
      {"Linear", {{1, 17}, {33, 17}, {33}}},
      {"Linear", {{2, 3, 1, 4}, {5, 4}, {5}}},
      {"Linear", {{4}, {3, 4}, {3}}},
      {"MatMul", {{1, 1}, {1, 1}}},
      {"MatMul", {{3, 5}, {5, 7}}},
      {"MatMul", {{5, 3}, {5, 7}}, {{"transpose_a", 1}}},
      {"MatMul", {{3, 5}, {7, 5}}, {{"transpose_b", 1}}},
      {"MatMul", {{5, 3}, {7, 5}}, {{"transpose_a", 1}, {"transpose_b", 1}}},
      {"MatMul", {{4, 3, 5}, {4, 5, 2}}},
      {"MatMul", {{2, 3, 4, 5}, {2, 3, 5, 1}}},
      {"MatMul", {{4, 3, 5}, {5, 2}}},
      {"MatMul", {{3, 5}, {4, 5, 2}}},
      {"MatMul", {{2, 1, 3, 5}, {4, 5, 2}}},
      {"MatMul", {{2, 1, 5, 3}, {1, 4, 2, 5}}, {{"transpose_a", 1}, {"transpose_b", 1}}},
      {"MatMul", {{1, 1, 3, 2}, {3, 1, 2, 1}}},
      {"MatMul", {{3, 1, 17}, {3, 17, 9}}},
      {"MatMul", {{2, 3, 5}, Constant({5, 7})}},
      {"MatMul", {Constant({7, 3}), {2, 4, 3, 5}}},
      {"Linear", {{37, 130}, {67, 130}, {67}}},
      {"Linear", {{5, 1, 7, 19}, {131, 19}}},
      {"MatMul", {{3, 2, 33, 21}, {3, 2, 21, 35}}},
      {"MatMul", {{2, 33, 37}, {35, 37}}, {{"transpose_b", 1}}},
      {"MatMul", {{70, 37}, {4, 70, 5}}, {{"transpose_a", 1}}},
  };
}

const OperatorFamily kFamily("matrix_products", Cases);

}  // namespace
}  // namespace muster::verification
