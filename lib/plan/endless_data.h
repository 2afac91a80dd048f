// The size of a data set that has no end.
#pragma once

#include <cstdint>

namespace muster {

// DatasetFacts.samples of a stream without end. Such a job needs training.steps.
inline constexpr int64_t kEndlessSamples = int64_t{1} << 62;

}  // namespace muster
