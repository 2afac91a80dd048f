#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  return {
      {"SelfAttention", {{1, 1, 3}}, {{"heads", 1}}},
      {"SelfAttention", {{2, 5, 12}}, {{"heads", 2}}},
      {"SelfAttention", {{2, 5, 12}}, {{"heads", 2}, {"causal", 1}}},
      {"SelfAttention", {{1, 17, 15}}, {{"heads", 5}, {"causal", 1}}},
      {"SelfAttention", {{1, 3, 51}}, {{"heads", 1}}},
      {"SelfAttention", {{2, 4, 12}, Constant({1, 1, 4, 4})}, {{"heads", 2}}},
      {"SelfAttention", {{2, 4, 12}, Constant({1, 2, 1, 4})}, {{"heads", 2}}},
      {"SelfAttention", {{2, 4, 12}, Constant({1, 1, 1, 4})}, {{"heads", 2}, {"causal", 1}}},
      {"SelfAttention", {Rows({2, 4, 12}), Input({2, 1, 1, 4})}, {{"heads", 2}}},
      {"SelfAttention", {Rows({2, 4, 12}), Input({2, 2, 4, 4})}, {{"heads", 2}}},
      {"SelfAttention", {{2, 70, 96}}, {{"heads", 2}, {"causal", 1}}},
      {"SelfAttention", {{1, 130, 48}}, {{"heads", 1}}},
      // cuDNN computes these cases on a GPU in 16 bits.
      {"SelfAttention", {{2, 128, 48}}, {{"heads", 2}, {"causal", 1}}},
      {"Attention", {{1, 128, 8}, {1, 128, 8}, {1, 128, 16}}, {{"heads", 1}, {"scale", 0.4}}},

      {"Attention", {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, {{"heads", 1}}},
      {"Attention", {{2, 3, 4}, {2, 5, 4}, {2, 5, 6}}, {{"heads", 2}}},
      {"Attention", {{2, 3, 4}, {2, 5, 4}, {2, 5, 4}}, {{"heads", 1}, {"scale", 0.4}}},
      {"Attention", {{2, 3, 4}, {2, 5, 4}, {2, 5, 4}}, {{"heads", 2}, {"causal", 1}}},
      {"Attention", {{2, 5, 6}, {2, 5, 6}, {2, 5, 6}}, {{"heads", 3}, {"causal", 1}}},
      {"Attention", {{1, 17, 5}, {1, 19, 5}, {1, 19, 5}}, {{"heads", 1}}},
      {"Attention", {{1, 1, 8}, {1, 6, 8}, {1, 6, 8}}, {{"heads", 2}, {"causal", 1}}},
      {"Attention",
       {{2, 3, 4}, {2, 5, 4}, {2, 5, 6}, Constant({1, 1, 3, 5})},
       {{"heads", 2}, {"causal", 1}, {"scale", 0.4}}},
      {"Attention",
       {Rows({2, 3, 4}), Rows({2, 5, 4}), Rows({2, 5, 6}), Input({2, 1, 1, 5})},
       {{"heads", 2}}},
      {"Attention",
       {Rows({2, 3, 4}), Rows({2, 5, 4}), Rows({2, 5, 6}), Input({2, 2, 3, 5})},
       {{"heads", 2}}},
      {"Attention", {{2, 35, 32}, {2, 70, 32}, {2, 70, 48}}, {{"heads", 2}, {"causal", 1}}},
  };
}

const OperatorFamily kFamily("attention", Cases);

}  // namespace
}  // namespace muster::verification
