#include <cstdint>

#include "absl/numeric/bits.h"
#include "absl/time/time.h"
#include "google/protobuf/repeated_field.h"
#include "lib/job/job_validation.h"
#include "lib/job/spec_duration.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr double kLossScaleDefault = 65536;
constexpr int64_t kGrowthStepsDefault = 2000;

// `AdamLike` is v1::Adam or v1::Lamb.
template <typename AdamLike>
void FillAdam(AdamLike& adam, double epsilon) {
  if (!adam.has_beta1()) adam.set_beta1(0.9);
  if (!adam.has_beta2()) adam.set_beta2(0.999);
  if (!adam.has_epsilon()) adam.set_epsilon(epsilon);
}

void FillOptimizer(v1::Optimizer& optimizer) {
  if (optimizer.has_adam()) FillAdam(*optimizer.mutable_adam(), 1e-8);
  if (optimizer.has_adamw()) FillAdam(*optimizer.mutable_adamw(), 1e-8);
  if (optimizer.has_lamb()) FillAdam(*optimizer.mutable_lamb(), 1e-6);
  if (optimizer.has_lars()) {
    v1::Lars& lars = *optimizer.mutable_lars();
    if (!lars.has_trust()) lars.set_trust(0.001);
    if (!lars.has_epsilon()) lars.set_epsilon(1e-8);
  }
  if (optimizer.has_adagrad() && !optimizer.adagrad().has_epsilon()) {
    optimizer.mutable_adagrad()->set_epsilon(1e-10);
  }
  if (optimizer.has_rmsprop()) {
    v1::Rmsprop& rmsprop = *optimizer.mutable_rmsprop();
    if (!rmsprop.has_alpha()) rmsprop.set_alpha(0.99);
    if (!rmsprop.has_epsilon()) rmsprop.set_epsilon(1e-8);
  }
}

void FillTraining(v1::TrainingSpec& training) {
  for (v1::ParameterGroup& group : *training.mutable_parameter_groups()) {
    if (!group.frozen() && !group.has_learning_rate_factor()) group.set_learning_rate_factor(1);
  }
  if (training.precision() == v1::PRECISION_UNSPECIFIED) training.set_precision(v1::FP32);
  if (!training.has_deterministic()) training.set_deterministic(true);
  if (training.precision() != v1::FP16) return;
  v1::LossScale& scale = *training.mutable_loss_scale();
  if (!scale.has_initial()) scale.set_initial(kLossScaleDefault);
  if (scale.growth_steps() == 0) scale.set_growth_steps(kGrowthStepsDefault);
}

void FillOnnx(v1::OnnxModel& onnx) {
  if (onnx.labels().empty()) onnx.set_labels("target");
  if (onnx.loss().empty()) onnx.set_loss("softmax_cross_entropy");
}

void FillSchedule(v1::Schedule& schedule) {
  if (schedule.kind_case() == v1::Schedule::KIND_NOT_SET) schedule.mutable_constant();
  if (schedule.has_poly() && schedule.poly().power() == 0) schedule.mutable_poly()->set_power(1);
}

void FillSync(v1::SyncSpec& sync) {
  if (sync.mode() == v1::SYNC_MODE_UNSPECIFIED) sync.set_mode(v1::BSP);
  if (sync.mode() == v1::SSP && sync.staleness() == 0) sync.set_staleness(1);
  if (sync.values() == v1::WIRE_VALUES_UNSPECIFIED) sync.set_values(v1::VALUES_FP32);
  v1::Compression& compression = *sync.mutable_compression();
  if (compression.kind() == v1::COMPRESSION_KIND_UNSPECIFIED) {
    compression.set_kind(v1::COMPRESSION_NONE);
  }
  if (compression.kind() == v1::COMPRESSION_TOPK && compression.ratio() == 0) {
    compression.set_ratio(0.01);
  }
  if (compression.kind() == v1::COMPRESSION_POWERSGD && compression.rank() == 0) {
    compression.set_rank(4);
  }
}

void FillTransforms(google::protobuf::RepeatedPtrField<v1::ImageTransform>& transforms) {
  const auto fill = [](auto& transform, v1::Interpolation interpolation) {
    if (transform.interpolation() == v1::INTERPOLATION_UNSPECIFIED) {
      transform.set_interpolation(interpolation);
    }
  };
  for (v1::ImageTransform& transform : transforms) {
    if (transform.has_resize()) fill(*transform.mutable_resize(), v1::INTERPOLATION_BILINEAR);
    if (transform.has_random_resized_crop()) {
      fill(*transform.mutable_random_resized_crop(), v1::INTERPOLATION_BILINEAR);
    }
    if (transform.has_rand_augment()) {
      fill(*transform.mutable_rand_augment(), v1::INTERPOLATION_NEAREST);
    }
  }
}

void FillImage(v1::DataSpec& data) {
  if (!data.has_image()) return;
  FillTransforms(*data.mutable_image()->mutable_train());
  FillTransforms(*data.mutable_image()->mutable_evaluate());
  if (data.image().decode() == v1::IMAGE_DECODE_UNSPECIFIED) {
    data.mutable_image()->set_decode(v1::IMAGE_DECODE_EXACT);
  }
}

// The order of samples depends on these, so an update of the job must not change them.
void FillBlock(v1::BlockShuffle& block, int64_t batch_size, int64_t workers) {
  if (block.window_blocks() == 0) block.set_window_blocks(limits::kWindowBlocksDefault);
  if (block.lanes() != 0 || workers < 1 || workers > limits::kWorkersMax) return;
  int64_t lanes = static_cast<int64_t>(absl::bit_ceil(static_cast<uint64_t>(workers)));
  // The shares of other numbers of workers cut lanes. If lanes are half as large, workers share
  // half as many blocks: three workers read a block 1.25 times instead of 1.5 times.
  if (lanes != workers) lanes *= 2;
  while (batch_size % lanes != 0) lanes /= 2;
  block.set_lanes(lanes);
}

void FillData(v1::DataSpec& data, int64_t workers) {
  if (data.has_mixture()) {
    for (v1::MixturePart& part : *data.mutable_mixture()->mutable_parts()) {
      if (part.has_data()) FillImage(*part.mutable_data());
    }
  }
  FillImage(data);
  if (data.shuffle().has_block()) {
    FillBlock(*data.mutable_shuffle()->mutable_block(), data.batch_size(), workers);
  }
}

void FillRestart(v1::RestartSpec& restart) {
  if (!restart.has_max_restarts()) restart.set_max_restarts(10);
  if (!restart.has_backoff()) *restart.mutable_backoff() = SpecDuration(absl::Seconds(1));
}

}  // namespace

void FillDefaults(v1::JobSpec& spec) {
  FillOptimizer(*spec.mutable_training()->mutable_optimizer());
  FillSchedule(*spec.mutable_training()->mutable_schedule());
  FillTraining(*spec.mutable_training());
  if (spec.model().has_onnx()) FillOnnx(*spec.mutable_model()->mutable_onnx());
  if (spec.has_program() && spec.program().processes() == 0) {
    spec.mutable_program()->set_processes(1);
  }
  FillSync(*spec.mutable_sync());
  v1::WorkerCount& workers = *spec.mutable_resources()->mutable_workers();
  if (workers.min() == 0) workers.set_min(1);
  if (workers.max() == 0) workers.set_max(workers.min());
  if (spec.resources().ps() == 0 && spec.sync().mode() != v1::ALLREDUCE) {
    spec.mutable_resources()->set_ps(1);
  }
  if (spec.resources().ps_replication() == 0 && spec.sync().mode() != v1::ALLREDUCE) {
    spec.mutable_resources()->set_ps_replication(1);
  }
  if (spec.resources().tensor_parallel() == 0) spec.mutable_resources()->set_tensor_parallel(1);
  // The order of samples must not depend on `max` if the job has logical workers.
  if (spec.has_data()) {
    FillData(*spec.mutable_data(), std::max(workers.max(), workers.logical()));
  }
  FillRestart(*spec.mutable_restart());
  if (spec.on_non_finite() == v1::ON_NON_FINITE_UNSPECIFIED) {
    spec.set_on_non_finite(v1::NON_FINITE_FAIL);
  }
  if (!spec.checkpoint().has_every()) {
    *spec.mutable_checkpoint()->mutable_every() = SpecDuration(kCheckpointEveryDefault);
  }
  if (!spec.checkpoint().has_keep_last()) spec.mutable_checkpoint()->set_keep_last(3);
  if (spec.checkpoint().mode() == v1::CHECKPOINT_MODE_UNSPECIFIED) {
    spec.mutable_checkpoint()->set_mode(v1::CHECKPOINT_MODE_STREAM);
  }
  if (spec.chunk_bytes() == 0) spec.set_chunk_bytes(limits::kChunkBytesDefault);
}

}  // namespace muster
