#include "services/worker/input_pipeline.h"

#include <utility>

#include "glog/logging.h"
#include "lib/data/sample_order.h"

namespace muster {

InputPipeline::InputPipeline(Options options)
    : options_(std::move(options)),
      buffers_(options_.batches),
      read_before_(options_.first_step),
      used_before_(options_.first_step),
      next_step_(options_.first_step) {
  CHECK_GE(options_.batches, 2);
  for (Buffer& buffer : buffers_) {
    buffer.input.resize(options_.samples * options_.input_bytes);
    buffer.target.resize(options_.samples * options_.target_bytes);
  }
  reader_ = std::jthread([this] { Read(); });
}

InputPipeline::~InputPipeline() {
  absl::MutexLock lock(&mu_);
  closed_ = true;
}

InputPipeline::Batch InputPipeline::Next() {
  const int64_t step = next_step_++;
  absl::MutexLock lock(&mu_);
  used_before_ = step;
  auto read = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return read_before_ > step; };
  mu_.Await(absl::Condition(&read));
  return {step, BufferOf(step).input, BufferOf(step).target};
}

void InputPipeline::Read() {
  for (int64_t step = options_.first_step;; ++step) {
    {
      absl::MutexLock lock(&mu_);
      auto room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return closed_ || step < used_before_ + options_.batches;
      };
      mu_.Await(absl::Condition(&room));
      if (closed_) return;
    }
    const BatchShare share =
        SamplesOfStep(options_.seed, options_.dataset->samples(), options_.batch_size, step,
                      options_.first_position, options_.samples);
    options_.dataset->Read(share.epoch, share.samples, absl::MakeSpan(BufferOf(step).input),
                           absl::MakeSpan(BufferOf(step).target));
    absl::MutexLock lock(&mu_);
    read_before_ = step + 1;
  }
}

}  // namespace muster
