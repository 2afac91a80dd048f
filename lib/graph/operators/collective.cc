#include <vector>

#include "lib/graph/operators/families.h"

namespace muster {

std::vector<Operator> CollectiveOperators() {
  return {
      // The gradient of the sum is the gradient of each term. ReshapeGrad, which copies it, is
      // needed only for a term that is a parameter.
      {.name = "AllReduce",
       .inputs = {"x T[...]"},
       .outputs = {"y T[...]"},
       .gradients = {{"ReshapeGrad", {"dy", "x"}, {"x"}, /*identity_if_same_type=*/true}}},
      {.name = "GradientAllReduce",
       .inputs = {"x T[...]"},
       .outputs = {"y T[...]"},
       .gradients = {{"AllReduce", {"dy"}, {"x"}}}},
  };
}

}  // namespace muster
