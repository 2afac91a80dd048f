#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  std::vector<OperatorCase> cases = {
      {"Log", {Positive({3, 17})}},
      {"Log", {Positive({1})}},
      {"Sqrt", {Positive({3, 17})}},
      {"Sqrt", {Positive({1})}},
      {"Gelu", {{3, 17}}, {{"exact", 1}}},
      {"Pow", {Positive({3, 5}), {3, 5}}},
      {"Pow", {Positive({2, 1, 5}), {3, 1}}},
      {"Pow", {Positive({1}), {4, 3}}},
      {"Pow", {{4, 3}, Constant({1}, {2})}},
      {"Div", {{3, 5}, Positive({3, 5})}},
      {"Div", {{2, 1, 5}, Positive({3, 1})}},
      {"Div", {{5}, Positive({2, 3, 5})}},
      {"Div", {{2, 3, 5}, Positive({5})}},

      {"Pow", {Positive({17, 1, 67}), {3, 1}}},
      {"Div", {{17, 1, 67}, Positive({3, 1})}},

      {"Where", {Ids({3, 5}, 0, 2), Rows({3, 5}), Rows({3, 5})}},
      {"Where", {Ids({3, 1}, -1, 2), Rows({3, 5}), {5}}},
      {"Where", {ConstantIds({1, 5}, 0, 2), {2, 3, 5}, {3, 1}}},
      {"Where", {Ids({2, 1, 4}, 0, 2), {1}, {3, 1}}},

      {"Elu", {{3, 17}}, {{"alpha", 0.5}}},
      {"LeakyRelu", {{3, 17}}, {{"slope", 0.25}}},
      {"HardSigmoid", {{3, 17}}, {{"alpha", 0.5}, {"beta", 0.25}}},
      {"Clip", {{3, 17}}, {{"min", -0.5}, {"max", 1.25}}},
      {"Clip", {{3, 17}}, {{"min", 0.1}}},
      {"Clip", {{3, 17}}, {{"max", 0.1}}},
      {"IsNan", {{3, 17}}, {}, {}},

      {"Where", {Ids({3, 5}, 0, 2), Ids({3, 5}, -9, 9), ConstantIds({5}, -9, 9)}, {}, {}},

      {"Mod", {Uniform({3, 5}, -4, 4), Constant({5}, {2, -0.75, 1, -3, 1.5})}},
      {"Mod", {Uniform({3, 1}, -4, 4), Constant({2, 1, 5})}},

      {"Cast", {{3, 5}}, {{"to", "f32"}}},
      {"Cast", {Uniform({3, 5}, -9, 9)}, {{"to", "i32"}}, {}},
      {"Cast", {Ids({3, 5}, -9, 9)}, {{"to", "f32"}}, {}},

      // Each parameter has the shape of one sample.
      {"Dropout", {{3, 7}}, {{"rate", 0.3}, {"salt", 5}}},
      {"Dropout", {{1, 33}}, {{"rate", 0.9}, {"salt", 0}}},
      {"Dropout", {{4}}, {{"rate", 0.0}, {"salt", 1}}},
      {"Dropout", {{43, 67}}, {{"rate", 0.1}, {"salt", 2}}},
  };
  for (const char* op : {"Floor", "Ceil", "Round", "Sign"}) {
    cases.push_back({op, {Uniform({3, 17}, -4, 4)}, {}, {}});
    cases.push_back({op, {Input({2, 3})}, {}, {}});
  }
  for (const char* op : {"Relu", "Gelu", "Silu", "Tanh", "Sigmoid", "Erf", "Exp", "Neg", "Abs",
                         "Sin", "Cos", "Softplus", "Elu", "LeakyRelu", "HardSigmoid", "Clip"}) {
    cases.push_back({op, {{1}}});
    cases.push_back({op, {{2, 3, 17}}});
    cases.push_back({op, {Uniform({65}, -4, 2)}});
    cases.push_back({op, {{2111}}});
  }
  for (const char* op : {"Equal", "Less", "LessOrEqual"}) {
    cases.push_back({op, {Constant({3}, {1, 2, 3}), Constant({2, 3}, {1, 3, 2, 0, 2, 4})}, {}, {}});
    cases.push_back({op, {{2, 1, 5}, {3, 1}}, {}, {}});
    cases.push_back({op, {Input({4, 3}), Input({4, 3})}, {}, {}});
  }
  for (const char* op :
       {"Add", "Sub", "Mul", "Div", "Mod", "Minimum", "Maximum", "Equal", "Less", "LessOrEqual"}) {
    cases.push_back({op, {Ids({4, 5}, -9, 9), Ids({4, 5}, -3, 3)}, {}, {}});
    cases.push_back({op, {ConstantIds({2, 1, 5}, -9, 9), ConstantIds({3, 1}, -3, 3)}, {}, {}});
  }
  for (const char* op : {"Neg", "Abs"}) cases.push_back({op, {Ids({4, 5}, -9, 9)}, {}, {}});
  for (const char* op : {"Add", "Sub", "Mul", "Minimum", "Maximum"}) {
    cases.push_back({op, {{1}, {1}}});
    cases.push_back({op, {{2, 3, 5}, {2, 3, 5}}});
    cases.push_back({op, {{2, 3, 5}, {5}}});
    cases.push_back({op, {{5}, {2, 3, 5}}});
    cases.push_back({op, {{2, 1, 5}, {3, 1}}});
    cases.push_back({op, {{3, 4}, {1}}});
    cases.push_back({op, {{2, 3, 1, 1}, {4, 5}}});
    cases.push_back({op, {{2, 1, 3, 1, 2}, {4, 1, 5, 1}}});
    cases.push_back({op, {Input({4, 3}), {3}}});
    cases.push_back({op, {{17, 1, 67}, {3, 1}}});
    cases.push_back({op, {{43, 67}, {67}}});
    cases.push_back({op, {{43, 1}, {43, 67}}});
  }
  return cases;
}

const OperatorFamily kFamily("elementwise", Cases);

}  // namespace
}  // namespace muster::verification
