#include "lib/data/pipeline/input_budget.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/pipeline/row_layout.h"
#include "lib/engine/host_memory.h"
#include "lib/limits/limits.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"
#include "lib/text/byte_size.h"

namespace muster {
namespace {

constexpr int64_t kDefaultBytesMax = int64_t{2} << 30;
constexpr int kReaderNice = 5;
constexpr int64_t kSlowSamplesAhead = 192;
// One batch is in use, one is ready, and one is being read.
constexpr int64_t kSlowBatchesMin = 3;
constexpr int64_t kSlowBatchesMax = 16;

}  // namespace

InputMemory InputMemoryOf(const v1::DataSpec& data, const std::string& root) {
  if (data.memory_bytes() > 0) return {.bytes = data.memory_bytes()};
  return {.bytes = std::min(kDefaultBytesMax, HostBytesLimit(root) / 4), .is_default = true};
}

int64_t BlockBytesMax(const v1::DataSpec& data) { return InputMemoryOf(data).bytes / 2; }

int BatchesAhead(const Dataset& dataset, int64_t samples) {
  if (!dataset.is_slow()) return limits::kPrefetchBatchesMax;
  return static_cast<int>(
      std::clamp(1 + CeilDiv(kSlowSamplesAhead, samples), kSlowBatchesMin, kSlowBatchesMax));
}

int NiceBesideCpu(const Dataset& dataset) { return dataset.is_slow() ? kReaderNice : 0; }

absl::StatusOr<int> BatchesWithin(const InputMemory& memory, const InputNeed& need, int most) {
  const int64_t left = memory.bytes - need.evaluation_bytes;
  if (left >= 2 * need.batch_bytes) {
    return static_cast<int>(std::min<int64_t>(most, left / std::max<int64_t>(1, need.batch_bytes)));
  }
  const std::string held_out =
      need.evaluation_bytes == 0
          ? ""
          : absl::StrCat(" (with ", FormatBytes(need.evaluation_bytes), " for held-out samples)");
  const std::string problem =
      absl::StrCat("two batches need ", FormatBytes(2 * need.batch_bytes + need.evaluation_bytes),
                   held_out, ", which is more than ", FormatBytes(memory.bytes));
  if (memory.is_default) {
    LOG(WARNING) << problem << ", the default of data.memory_bytes; only two are read ahead";
    return 2;
  }
  return AtField(WithReason(absl::ResourceExhaustedError(absl::StrCat(
                                problem, ": raise it, or use a smaller batch or more workers")),
                            "MEMORY_EXHAUSTED"),
                 "data.memory_bytes");
}

}  // namespace muster
