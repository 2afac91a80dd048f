// Names the tensor of a step that is not finite.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "lib/exchange/gradient_exchange.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Names a gradient, value or statistic that is not finite, of the step that led to `version`.
// Returns text that follows a sentence, or "" if the answer is unknown. Statistics come last,
// because no training loss reads them. `parameters`: the worker's values, by parameter; those of
// `narrow_parameters` begin with bf16.
std::string NameNonFiniteTensor(const v1::JobPlan& plan, const GradientExchange& exchange,
                                int64_t version, absl::Span<const absl::Span<float>> parameters,
                                const std::vector<bool>& narrow_parameters);

}  // namespace muster
