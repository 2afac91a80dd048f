#include "services/worker/training/non_finite_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "lib/plan/numbers.h"
#include "lib/plan/parameter_group.h"

namespace muster {
namespace {

bool IsStatistic(const v1::JobPlan& plan, int parameter) {
  return plan.graph().parameters(parameter).has_statistic_momentum();
}

std::string NameWithGroup(const v1::JobPlan& plan, int parameter) {
  const v1::Parameter& named = plan.graph().parameters(parameter);
  const std::optional<int> group = GroupOf(plan.spec().training(), named);
  return absl::StrCat(
      "'", named.name(), "' (",
      group ? absl::StrCat("training.parameter_groups[", *group, "]") : "of no parameter group",
      ")");
}

// Returns the first trained parameter with a value that is not finite.
std::optional<int> FirstNonFiniteValue(const v1::JobPlan& plan,
                                       absl::Span<const absl::Span<float>> parameters,
                                       const std::vector<bool>& narrow_parameters) {
  constexpr uint16_t kBf16Exponent = 0x7f80;  // all ones: infinite, or not a number
  for (int p = 0; p < plan.graph().parameters_size(); ++p) {
    if (IsStatistic(plan, p)) continue;
    const absl::Span<const float> values = parameters[p];
    bool finite = true;
    for (size_t i = 0; finite && i < values.size(); ++i) {
      // Bf16, because steps of fp16 jobs are judged and never stop the job.
      if (narrow_parameters[p]) {
        uint16_t bits;
        std::memcpy(&bits, reinterpret_cast<const char*>(values.data()) + i * sizeof(bits),
                    sizeof(bits));
        finite = (bits & kBf16Exponent) != kBf16Exponent;
      } else {
        finite = std::isfinite(values[i]);
      }
    }
    if (!finite) return p;
  }
  return std::nullopt;
}

}  // namespace

std::string NameNonFiniteTensor(const v1::JobPlan& plan, const GradientExchange& exchange,
                                int64_t version, absl::Span<const absl::Span<float>> parameters,
                                const std::vector<bool>& narrow_parameters) {
  if (exchange.version() != version && exchange.version() != version + 1) return "";
  absl::btree_set<int> gradients, statistics;
  for (const ChunkId chunk : NumbersBelow<ChunkId>(plan.chunks_size())) {
    const v1::PlanChunk& planned = plan.chunks(ToInt(chunk));
    if (planned.slot() != 0 || std::isfinite(exchange.GradientSquares(chunk, version))) continue;
    (IsStatistic(plan, planned.parameter()) ? statistics : gradients).insert(planned.parameter());
  }
  if (!gradients.empty()) {
    const int of = static_cast<int>(std::ranges::count_if(
        plan.graph().parameters(),
        [](const v1::Parameter& parameter) { return !parameter.has_statistic_momentum(); }));
    return absl::StrCat("; the gradients of ", gradients.size(), " of ", of,
                        " parameters are not finite, the first is that of ",
                        NameWithGroup(plan, *gradients.begin()));
  }
  // Values of another version tell nothing, because answers may be overwriting them.
  const std::optional<int> parameter =
      exchange.version() == version ? FirstNonFiniteValue(plan, parameters, narrow_parameters)
                                    : std::nullopt;
  if (parameter) {
    return absl::StrCat("; its gradient is finite, but the value of parameter ",
                        NameWithGroup(plan, *parameter), " no longer is");
  }
  if (statistics.empty()) return "; every element of its gradient is finite";
  return absl::StrCat("; the running statistic '",
                      plan.graph().parameters(*statistics.begin()).name(),
                      "' is not finite, every gradient is");
}

}  // namespace muster
