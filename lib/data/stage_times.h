// Measures what reading samples costs, by stage.
#pragma once

#include <array>
#include <cstdint>

namespace muster {

// `kCopy` is what no other stage names: looking samples up and copying rows.
enum class InputStage { kCopy, kOpen, kRead, kDecode, kResample, kAugment };
inline constexpr int kInputStages = 6;

// The times of one thread.
struct StageTimes {
  std::array<int64_t, kInputStages> nanoseconds = {};
  int64_t read_bytes = 0;
  int64_t samples = 0;  // read

  StageTimes& operator+=(const StageTimes& other);
};

// Sets where StageScope counts on this thread, or nullptr. Returns what was set before.
StageTimes* SetStageTimes(StageTimes* times);

// Counts bytes that this thread read from files.
void CountReadBytes(int64_t bytes);

// Counts samples that this thread read.
void CountReadSamples(int64_t samples);

// Counts the time until its end, or until a scope within it begins, for `stage`. Costs two readings
// of the clock, and nothing if no times are set.
class StageScope {
 public:
  explicit StageScope(InputStage stage);
  ~StageScope();
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  const bool is_counting_;
  const InputStage outer_;
};

}  // namespace muster
