#include "lib/data/stage_times.h"

#include <chrono>

namespace muster {
namespace {

thread_local StageTimes* current_times = nullptr;
thread_local InputStage current_stage = InputStage::kCopy;
thread_local int64_t current_since = 0;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Adds the time since the last change of stages to the stage that ends.
void ChangeStage(InputStage to) {
  const int64_t now = Now();
  current_times->nanoseconds[static_cast<int>(current_stage)] += now - current_since;
  current_since = now;
  current_stage = to;
}

}  // namespace

StageTimes* SetStageTimes(StageTimes* times) {
  if (current_times != nullptr) ChangeStage(InputStage::kCopy);
  StageTimes* const before = current_times;
  current_times = times;
  current_stage = InputStage::kCopy;
  if (times != nullptr) current_since = Now();
  return before;
}

void CountReadBytes(int64_t bytes) {
  if (current_times != nullptr) current_times->read_bytes += bytes;
}

void CountReadSamples(int64_t samples) {
  if (current_times != nullptr) current_times->samples += samples;
}

StageTimes& StageTimes::operator+=(const StageTimes& other) {
  for (int i = 0; i < kInputStages; ++i) nanoseconds[i] += other.nanoseconds[i];
  read_bytes += other.read_bytes;
  samples += other.samples;
  return *this;
}

StageScope::StageScope(InputStage stage)
    : is_counting_(current_times != nullptr), outer_(current_stage) {
  if (is_counting_) ChangeStage(stage);
}

StageScope::~StageScope() {
  if (is_counting_) ChangeStage(outer_);
}

}  // namespace muster
