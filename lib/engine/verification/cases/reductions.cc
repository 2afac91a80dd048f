#include <vector>

#include "lib/engine/verification/operator_case.h"

namespace muster::verification {
namespace {

std::vector<OperatorCase> Cases() {
  std::vector<OperatorCase> cases;
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax"}) {
    cases.push_back({op, {{1}}, {{"axes", {0}}}});
    cases.push_back({op, {{7}}, {{"axes", {0}}, {"keep", 0}}});
    cases.push_back({op, {{3, 5}}, {{"axes", {0}}}});
    cases.push_back({op, {{3, 5}}, {{"axes", {-1}}, {"keep", 0}}});
    cases.push_back({op, {{2, 3, 4, 5}}, {{"axes", {1, 2}}, {"keep", 0}}});
    cases.push_back({op, {{2, 3, 4, 5}}, {{"axes", {0, 2}}}});
    cases.push_back({op, {{2, 3, 4, 5}}, {{"axes", {-1, 1}}}});
    cases.push_back({op, {{2, 1, 4}}, {{"axes", {1}}, {"keep", 0}}});
    cases.push_back({op, {{2, 3, 5}}, {{"axes", {0, 1, 2}}, {"keep", 0}}});
    cases.push_back({op, {{3, 67}}, {{"axes", {1}}}});
    cases.push_back({op, {{67, 3}}, {{"axes", {0}}}});
    cases.push_back({op, {{33, 5, 71}}, {{"axes", {0, 2}}}});
    cases.push_back({op, {{33, 5, 71}}, {{"axes", {1}}, {"keep", 0}}});
    cases.push_back({op, {{33, 71}}, {{"axes", {-1}}}});
  }
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    cases.push_back({op, {{5}}});
    cases.push_back({op, {{3, 1}}});
    cases.push_back({op, {{3, 7}}});
    cases.push_back({op, {{2, 3, 33}}});
    cases.push_back({op, {Uniform({2, 5}, -90, 90)}});
    cases.push_back({op, {{65, 131}}});
  }
  cases.push_back({"CumSum", {{1}}, {{"axis", 0}}});
  cases.push_back({"CumSum", {{3, 7}}, {{"axis", -1}}});
  cases.push_back({"CumSum", {{3, 7}}, {{"axis", 0}, {"exclusive", 1}}});
  cases.push_back({"CumSum", {{2, 5, 3}}, {{"axis", 1}, {"reverse", 1}}});
  cases.push_back({"CumSum", {{2, 5, 3}}, {{"axis", 2}, {"exclusive", 1}, {"reverse", 1}}});
  cases.push_back({"CumSum", {{67, 35}}, {{"axis", 0}}});
  cases.push_back({"CumSum", {{5, 271}}, {{"axis", 1}, {"reverse", 1}}});
  cases.push_back({"CumSum", {Ids({4, 40}, -9, 9)}, {{"axis", 1}}, {}});
  return cases;
}

const OperatorFamily kFamily("reductions", Cases);

}  // namespace
}  // namespace muster::verification
