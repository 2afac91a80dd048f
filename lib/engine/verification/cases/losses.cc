#include <cstdint>
#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  return {
      {"SoftmaxCrossEntropy", {Rows({1, 1}), Ids({1}, {0})}},
      {"SoftmaxCrossEntropy", {Rows({3, 5}), Ids({3}, 0, 5)}},
      {"SoftmaxCrossEntropy", {Rows({2, 3, 17}), Ids({2, 3}, 0, 17)}},
      {"SoftmaxCrossEntropy", {Rows({4, 5}), Ids({4}, 0, 5)}, {{"label_smoothing", 0.1}}},
      {"SoftmaxCrossEntropy", {Rows({4, 5}), Ids({4}, 0, 5)}, {{"weight", 0.25}}},
      {"SoftmaxCrossEntropy",
       {Rows({4, 5}), Ids({4}, {1, -100, 4, -100})},
       {{"ignore_index", -100}}},
      {"SoftmaxCrossEntropy", {Rows({4, 5}), Ids({4}, {1, 0, 4, 0})}, {{"ignore_index", 0}}},
      {"SoftmaxCrossEntropy",
       {Rows({2, 3, 33}), Ids({2, 3}, {1, 32, -1, 7, -1, -1})},
       {{"ignore_index", -1}, {"label_smoothing", 0.2}, {"weight", 2.0}}},
      {"SoftmaxCrossEntropy", {Rows({65, 131}), Ids({65}, 0, 131)}, {{"label_smoothing", 0.1}}},

      {"SigmoidCrossEntropy", {Rows({1}), As(Operand::Kind::kInput, Uniform({1}, 0, 1))}},
      {"SigmoidCrossEntropy", {Rows({3, 17}), As(Operand::Kind::kInput, Uniform({3, 17}, 0, 1))}},
      {"SigmoidCrossEntropy",
       {Rows({4, 3}), As(Operand::Kind::kInput, Uniform({4, 3}, 0, 1))},
       {{"weight", 0.5}}},

      {"MeanSquaredError", {Rows({1}), Input({1})}},
      {"MeanSquaredError", {Rows({3, 17}), Input({3, 17})}},
      {"MeanSquaredError", {Rows({2, 3, 4}), Input({2, 3, 4})}, {{"weight", 0.5}}},

      {"CorrectCount", {Rows({7, 3}), Ids({7}, 0, 3)}, {}, {}},
      {"CorrectCount",
       {Rows({2, 4, 2}), Ids({2, 4}, {0, 1, 0, 1, 0, -1, -1, 1})},
       {{"ignore_index", -1}},
       {}},

      {"BatchShare", {std::vector<int64_t>{}}},
  };
}

const OperatorFamily kFamily("losses", Cases);

}  // namespace
}  // namespace muster::verification
