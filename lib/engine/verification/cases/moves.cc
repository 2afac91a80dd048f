// Ops that only move elements.
#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  return {
      {"Reshape", {{2, 3, 4}}, {{"shape", {4, 6}}}},
      {"Reshape", {{2, 3, 4}}, {{"shape", {0, -1}}}},
      {"Reshape", {{1}}, {{"shape", {1, 1, -1}}}},
      {"Reshape", {{2, 3, 4}}, {{"shape", {0, 1, -1}}}},
      {"Flatten", {{2, 3, 4}}},
      {"Flatten", {{2, 3, 4}}, {{"axis", 2}}},
      {"Flatten", {{2, 3, 4}}, {{"axis", 0}}},
      {"Squeeze", {{2, 1, 3, 1}}, {{"axes", {1, -1}}}},
      {"Unsqueeze", {{2, 3}}, {{"axes", {0, -1}}}},
      {"Unsqueeze", {{2, 3}}, {{"axes", {1, 2}}}},

      {"Transpose", {{3, 5}}, {{"permutation", {1, 0}}}},
      {"Transpose", {{3, 5}}, {{"permutation", {0, 1}}}},
      {"Transpose", {{2, 3, 4}}, {{"permutation", {2, 0, 1}}}},
      {"Transpose", {{2, 3, 1, 5}}, {{"permutation", {0, 2, 1, 3}}}},
      {"Transpose", {{2, 3, 4, 5}}, {{"permutation", {3, 1, 0, 2}}}},
      {"Transpose", {{2, 1, 3, 2, 4}}, {{"permutation", {4, 2, 1, 0, 3}}}},
      {"Transpose", {{17, 33, 19}}, {{"permutation", {2, 1, 0}}}},
      {"Transpose", {{3, 35, 2, 40}}, {{"permutation", {0, 2, 1, 3}}}},

      {"Expand", {{3, 1}}, {{"shape", {3, 5}}}},
      {"Expand", {{3, 1}}, {{"shape", {2, 0, 4}}}},
      {"Expand", {{2, 1, 3}}, {{"shape", {0, 4, 1}}}},
      {"Expand", {{4}}, {{"shape", {2, 3, 4}}}},
      {"Expand", {{1}}, {{"shape", {3, 2}}}},
      {"Expand", {{1, 1, 3}, Input({4, 2})}, {{"shape", {-1, 5, 0}}}},
      {"Expand", {{3}, Ids({4}, 0, 9)}, {{"shape", {-1, 1}}}},
      {"Expand", {{2, 3}, Input({1, 2})}, {{"shape", {-1, 0, 0}}}},
      {"Expand", {ConstantIds({1, 3}, -9, 9), Input({4, 2})}, {{"shape", {-1, 3}}}, {}},

      {"SampleIndex", {Input({4, 3})}, {}, {}},
      {"SampleIndex", {Ids({1}, 0, 9)}, {}, {}},

      {"Concat", {{2, 3}}, {{"axis", 0}}},
      {"Concat", {{2, 3}, {1, 3}, {4, 3}}, {{"axis", 0}}},
      {"Concat", {{2, 3}, {2, 1}}, {{"axis", 1}}},
      {"Concat", {{2, 3, 4}, {2, 2, 4}, {2, 1, 4}}, {{"axis", -2}}},
      {"Concat", {{2, 1, 3, 2}, {2, 1, 3, 5}}, {{"axis", 3}}},
      {"Concat", {{17, 33, 5}, {17, 1, 5}, {17, 70, 5}}, {{"axis", 1}}},

      {"Split", {{6, 3}}, {{"axis", 0}, {"sizes", {1, 2, 3}}}, {0, 1, 2}},
      {"Split", {{2, 7}}, {{"axis", 1}, {"sizes", {3, 4}}}, {0, 1}},
      {"Split", {{2, 5, 3}}, {{"axis", -2}, {"sizes", {1, 4}}}, {0, 1}},
      {"Split", {{2, 7}}, {{"axis", 1}, {"sizes", {3, 4}}}, {1}},
      {"Split", {{2, 7}}, {{"axis", 1}, {"sizes", {7}}}},

      {"Slice", {{5, 3}}, {{"axes", {0}}, {"starts", {1}}, {"ends", {4}}}},
      {"Slice", {{5, 7}}, {{"axes", {1}}, {"starts", {0}}, {"ends", {99}}, {"steps", {3}}}},
      {"Slice",
       {{4, 7, 3}},
       {{"axes", {0, -2}}, {"starts", {1, -6}}, {"ends", {9, -1}}, {"steps", {2, 3}}}},
      {"Slice", {{2, 3}}, {{"axes", {0, 1}}, {"starts", {-99, -1}}, {"ends", {2, 3}}}},
      {"Slice", {{5}}, {{"axes", {0}}, {"starts", {2}}, {"ends", {3}}}},
      {"Slice", {{17, 40, 9}}, {{"axes", {1}}, {"starts", {3}}, {"ends", {-2}}, {"steps", {2}}}},

      {"Pad", {{2, 3}}, {{"padding", {0, 1, 1, 2}}}},
      {"Pad", {{2, 3}}, {{"padding", {1, 0, 0, 0}}, {"value", -1.5}}},
      {"Pad", {{1}}, {{"padding", {2, 3}}}},
      {"Pad", {{2, 3, 2, 2}}, {{"padding", {0, 1, 1, 0, 2, 0, 0, 1}}}},
      {"Pad", {{2, 3}}, {{"padding", {0, 0, 0, 0}}}},

      {"Gather", {{5, 3}, Ids({4}, {0, 4, -1, 2})}},
      {"Gather", {{5, 3}, Ids({2, 2}, -5, 5)}, {{"axis", 0}}},
      {"Gather", {{2, 5, 3}, Ids({4}, {1, 1, 1, 3})}, {{"axis", 1}}},
      {"Gather", {{2, 5}, Ids({3, 2}, -5, 5)}, {{"axis", -1}}},
      {"Gather", {{1, 1}, Ids({1}, {0})}},
      {"Gather", {{3, 50, 21}, Ids({90}, -50, 50)}, {{"axis", 1}}},

      {"GatherElements", {{5, 3}, ConstantIds({4, 3}, -5, 5)}},
      {"GatherElements", {Rows({3, 5}), Ids({3, 7}, -5, 5)}, {{"axis", 1}}},
      {"GatherElements", {Rows({2, 4, 9}), Ids({2, 4, 1}, -9, 9)}, {{"axis", -1}}},
      {"GatherElements", {{4, 5, 6}, ConstantIds({2, 7, 3}, -5, 5)}, {{"axis", 1}}},
      {"GatherElements", {{4, 5, 6}, ConstantIds({3, 2, 7}, -6, 6)}, {{"axis", 2}}},
      {"GatherElements", {{1}, ConstantIds({3}, -1, 1)}},
      {"GatherElements", {{3, 50, 21}, ConstantIds({3, 90, 21}, -50, 50)}, {{"axis", 1}}},

      {"ScatterElements", {{5, 3}, ConstantIds({4, 2}, -5, 5), {4, 2}}},
      {"ScatterElements", {{5, 3}, ConstantIds({4, 2}, -5, 5), {4, 2}}, {{"reduction", "add"}}},
      {"ScatterElements",
       {Rows({3, 5}), Ids({3, 7}, -5, 5), Rows({3, 7})},
       {{"axis", 1}, {"reduction", "none"}}},
      {"ScatterElements",
       {Constant({2, 4, 5}), ConstantIds({2, 9, 3}, -4, 4), {2, 9, 3}},
       {{"axis", 1}}},
      {"ScatterElements",
       {{2, 4, 5}, ConstantIds({2, 9, 3}, -4, 4), Constant({2, 9, 3})},
       {{"axis", -2}, {"reduction", "add"}}},
      {"ScatterElements",
       {{3, 50, 21}, ConstantIds({3, 90, 21}, -50, 50), {3, 90, 21}},
       {{"axis", 1}, {"reduction", "add"}}},

      {"TopK", {{1}}, {{"k", 1}}},
      {"TopK", {{5, 7}}, {{"k", 1}}},
      {"TopK", {{2, 3, 9}}, {{"k", 4}, {"largest", 0}}},
      {"TopK", {{3, 6}}, {{"k", 6}}},
      {"TopK", {{3, 1030}}, {{"k", 20}}},

      {"Embedding", {Ids({3}, 0, 7), {7, 5}}},
      {"Embedding", {Ids({2, 3}, 0, 4), {4, 17}}},
      {"Embedding", {Ids({2, 2, 2}, {1, 1, 1, 1, 1, 1, 1, 1}), {2, 1}}},
      {"Embedding", {Ids({1}, {0}), {1, 1}}},
      {"Embedding", {Ids({60, 5}, 0, 50), {50, 67}}},

      {"Constant", {}, {{"shape", {2, 3}}, {"value", 1.5}}, {}},
      {"Constant", {}, {{"shape", {3}}, {"values", {1.0, -2.5, 3.0}}}, {}},
      {"Constant", {}, {{"shape", {3}}, {"dtype", "i32"}, {"integers", {1, -2, 3}}}, {}},
  };
}

const OperatorFamily kFamily("moves", Cases);

}  // namespace
}  // namespace muster::verification
