#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  return {
      {"BatchNorm", {{5, 3}, Statistic({3}), Statistic({3}), {3}, {3}}},
      {"BatchNorm", {{4, 3, 2, 5}, Statistic({3}), Statistic({3}), {3}, {3}}},
      {"BatchNorm", {{4, 3, 2, 5}, Statistic({3}), Statistic({3}), {3}}, {{"epsilon", 1e-3}}},
      {"BatchNorm", {{2, 1, 1, 3}, Statistic({1}), Statistic({1}), {1}, {1}}},
      {"BatchNorm", {{1, 17, 3, 3}, Statistic({17}), Statistic({17}), {17}, {17}}},
      {"BatchNorm", {{3, 4, 7}, Statistic({4}), Statistic({4}), {4}, {4}}},
      {"BatchNorm", {{5, 37, 9, 11}, Statistic({37}), Statistic({37}), {37}, {37}}},

      {"BatchNormInference", {{4, 3, 2, 5}, {3}, Positive({3}), {3}, {3}}, {}, {}},
      {"BatchNormInference", {{4, 3}, {3}, Positive({3}), {3}}, {{"epsilon", 1e-3}}, {}},

      {"LayerNorm", {{3, 7}, {7}, {7}}},
      {"LayerNorm", {{3, 7}, {7}}},
      {"LayerNorm", {{2, 3, 33}, {33}, {33}}, {{"epsilon", 1e-3}}},
      {"LayerNorm", {{1, 2}, {2}, {2}}},
      // Norms of one value. Their gradient is 0 because terms cancel, and rstd makes the rounding
      // errors of these terms 300 times larger.
      {"LayerNorm", {{3, 1}, {1}, {1}}, {}, {0}, 10},
      {"LayerNorm", {{5}, {5}, {5}}},
      {"LayerNorm", {{2, 2, 2, 16}, {16}, {16}}},
      {"LayerNorm", {{41, 259}, {259}, {259}}},

      {"RmsNorm", {{3, 7}, {7}}},
      {"RmsNorm", {{2, 3, 33}, {33}}, {{"epsilon", 1e-3}}},
      {"RmsNorm", {{1, 1}, {1}}, {{"epsilon", 0.1}}},
      {"RmsNorm", {{41, 259}, {259}}},

      {"GroupNorm", {{2, 6, 3, 5}, {6}, {6}}, {{"groups", 3}}},
      {"GroupNorm", {{2, 6, 5}, {6}, {6}}, {{"groups", 1}, {"epsilon", 1e-3}}},
      {"GroupNorm", {{3, 4, 2, 3}, {4}, {4}}, {{"groups", 4}}},
      {"GroupNorm", {{3, 6}, {6}, {6}}, {{"groups", 2}}},
      {"GroupNorm", {{1, 34, 3, 1}, {34}, {34}}, {{"groups", 2}}},
      {"GroupNorm", {{3, 24, 13, 9}, {24}, {24}}, {{"groups", 4}}},
  };
}

const OperatorFamily kFamily("norms", Cases);

}  // namespace
}  // namespace muster::verification
