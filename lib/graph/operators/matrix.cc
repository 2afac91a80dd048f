#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/graph/attributes.h"
#include "lib/graph/operators/broadcast.h"
#include "lib/graph/operators/families.h"
#include "lib/status/status.h"

namespace muster {
namespace {

absl::Status RelateMatMul(const v1::Node& node, Dimensions& dimensions) {
  const absl::Span<const int64_t> a = dimensions.Run("...a");
  const absl::Span<const int64_t> b = dimensions.Run("...b");
  if (a.size() < 2 || b.size() < 2) {
    return absl::InvalidArgumentError("a matrix has at least two dimensions");
  }
  const bool transpose_a = IntegerAttribute(node, "transpose_a") != 0;
  const bool transpose_b = IntegerAttribute(node, "transpose_b") != 0;
  const int64_t rows = a[a.size() - (transpose_a ? 1 : 2)];
  const int64_t inner = a[a.size() - (transpose_a ? 2 : 1)];
  const int64_t inner_b = b[b.size() - (transpose_b ? 1 : 2)];
  const int64_t columns = b[b.size() - (transpose_b ? 2 : 1)];
  if (inner != inner_b) {
    return absl::InvalidArgumentError(
        absl::StrCat("inner dimensions ", inner, " and ", inner_b, " differ"));
  }
  ASSIGN_OR_RETURN(std::vector<int64_t> y, Broadcast(a.first(a.size() - 2), b.first(b.size() - 2)));
  y.insert(y.end(), {rows, columns});
  return dimensions.Bind("...y", y);
}

}  // namespace

std::vector<Operator> MatrixOperators() {
  const std::vector<AttributeRule> transposes = {Integer("transpose_a").Default(0).Within(0, 1),
                                                 Integer("transpose_b").Default(0).Within(0, 1)};
  return {
      {.name = "Linear",
       .inputs = {"x T[..., inner]", "w T[outer, inner]", "bias? T[outer]"},
       .outputs = {"y T[..., outer]"},
       .gradients = {{"LinearGradBias", {"dy"}, {"bias"}},
                     {"LinearGradWeight", {"dy", "x"}, {"w"}},
                     {"LinearGradInput", {"dy", "w"}, {"x"}}}},
      {.name = "LinearGradInput",
       .inputs = {"dy T[..., outer]", "w T[outer, inner]"},
       .outputs = {"dx T[..., inner]"}},
      {.name = "LinearGradWeight",
       .inputs = {"dy T[..., outer]", "x T[..., inner]"},
       .outputs = {"dw T[outer, inner]"}},
      {.name = "LinearGradBias", .inputs = {"dy T[..., outer]"}, .outputs = {"db T[outer]"}},

      {.name = "MatMul",
       .inputs = {"a T[...a]", "b T[...b]"},
       .outputs = {"y T[...y]"},
       .attributes = transposes,
       .relate = RelateMatMul,
       .gradients = {{"MatMulGradB", {"dy", "a", "b"}, {"b"}},
                     {"MatMulGradA", {"dy", "a", "b"}, {"a"}}}},
      {.name = "MatMulGradA",
       .inputs = {"dy T[...y]", "a(shape) T[...a]", "b T[...b]"},
       .outputs = {"da T[...a]"},
       .attributes = transposes,
       .relate = RelateMatMul},
      {.name = "MatMulGradB",
       .inputs = {"dy T[...y]", "a T[...a]", "b(shape) T[...b]"},
       .outputs = {"db T[...b]"},
       .attributes = transposes,
       .relate = RelateMatMul},
  };
}

}  // namespace muster
