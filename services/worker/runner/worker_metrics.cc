#include "services/worker/runner/worker_metrics.h"

namespace muster {
namespace {

constexpr char kJobInfo[] = "muster_worker_job_info";
constexpr char kPeak[] = "muster_worker_peak_flops";

prometheus::Histogram& Phase(Metrics& metrics, const std::string& phase) {
  return metrics.Histogram("muster_worker_step_phase_duration_seconds",
                           "Time of one phase of a training step; phase=evaluate is one evaluation",
                           {{"phase", phase}});
}

prometheus::Counter& InputSeconds(Metrics& metrics, const std::string& stage) {
  return metrics.Counter("muster_worker_input_seconds_total",
                         "Time of all threads that read samples, by stage; stage=room is waiting "
                         "because all batches were ready or the memory for them was used up",
                         {{"stage", stage}});
}

}  // namespace

WorkerMetrics::WorkerMetrics(Metrics& metrics)
    : metrics_(metrics),
      exchange(metrics),
      steps(metrics.Counter("muster_worker_steps_total", "Training steps computed")),
      missed_steps(metrics.Counter("muster_worker_missed_steps_total",
                                   "Steps that the other workers closed without this one")),
      samples(metrics.Counter("muster_worker_samples_total", "Training samples computed")),
      flops(metrics.Counter("muster_worker_flops_total",
                            "Floating-point operations of the model in those steps, by the usual "
                            "arithmetic: matrix products, convolutions, attention, recurrences")),
      step_duration(metrics.Histogram("muster_worker_step_duration_seconds",
                                      "Time of one training step, without evaluation")),
      data_duration(Phase(metrics, "data")),
      compute_duration(Phase(metrics, "compute")),
      wait_duration(Phase(metrics, "wait")),
      evaluate_duration(Phase(metrics, "evaluate")),
      loss(metrics.Gauge(
          "muster_worker_loss",
          "Mean loss of this worker's share of the last step; where targets are ignored, its part "
          "of the batch's mean loss over its part of the samples")),
      gradient_norm(metrics.Gauge("muster_worker_gradient_norm",
                                  "Norm of the whole batch's gradient of the last finished step")),
      learning_rate(
          metrics.Gauge("muster_worker_learning_rate", "Learning rate of the last finished step")),
      nonfinite_losses(metrics.Counter("muster_worker_nonfinite_losses_total",
                                       "Steps whose loss was infinite or not a number")),
      loss_scale(metrics.Gauge("muster_worker_loss_scale",
                               "Loss scale of the last finished step; 0 but for fp16")),
      skipped_steps(metrics.Counter("muster_worker_skipped_steps_total",
                                    "Steps that changed nothing: their gradient was not finite")),
      input_open_seconds(InputSeconds(metrics, "open")),
      input_read_seconds(InputSeconds(metrics, "read")),
      input_decode_seconds(InputSeconds(metrics, "decode")),
      input_resample_seconds(InputSeconds(metrics, "resample")),
      input_augment_seconds(InputSeconds(metrics, "augment")),
      input_room_seconds(InputSeconds(metrics, "room")),
      input_samples(metrics.Counter("muster_worker_input_samples_total",
                                    "Samples read, for training and for evaluations")),
      input_read_bytes(metrics.Counter("muster_worker_input_read_bytes_total",
                                       "Bytes of samples read from files")),
      input_substituted(metrics.Counter("muster_worker_input_substituted_total",
                                        "Damaged samples that were replaced by others")),
      restore_bytes(metrics.Counter("muster_worker_restore_bytes_total",
                                    "Bytes of checkpoints that the worker's shard of an all-reduce "
                                    "job was restored from")),
      restore_duration(metrics.Histogram("muster_worker_restore_duration_seconds",
                                         "Making that shard, which is reading its part of a "
                                         "checkpoint where there is one")) {}

prometheus::Gauge& WorkerMetrics::JobInfo(const std::string& job) {
  return metrics_.Gauge(kJobInfo, "1, with the job that this worker serves as a label",
                        {{"job", job}});
}

void WorkerMetrics::ShowJob(const std::string& job) { JobInfo(job).Set(1); }

void WorkerMetrics::ForgetJob(const std::string& job) { metrics_.Remove(kJobInfo, JobInfo(job)); }

void WorkerMetrics::ShowPeak(double flops) {
  prometheus::Gauge& peak = metrics_.Gauge(
      kPeak, "FLOP/s that the devices in use could do at best in the job's precision");
  peak.Set(flops);
  if (flops == 0) metrics_.Remove(kPeak, peak);
}

void WorkerMetrics::CountInput(const v1::InputTiming& before, const v1::InputTiming& now) {
  // A counter throws away negative increments, which rounding may cause.
  input_open_seconds.Increment(now.open_seconds() - before.open_seconds());
  input_read_seconds.Increment(now.read_seconds() - before.read_seconds());
  input_decode_seconds.Increment(now.decode_seconds() - before.decode_seconds());
  input_resample_seconds.Increment(now.resample_seconds() - before.resample_seconds());
  input_augment_seconds.Increment(now.augment_seconds() - before.augment_seconds());
  input_room_seconds.Increment(now.room_seconds() - before.room_seconds());
  const auto whole = [](int64_t from, int64_t to) { return static_cast<double>(to - from); };
  input_samples.Increment(whole(before.samples(), now.samples()));
  input_read_bytes.Increment(whole(before.read_bytes(), now.read_bytes()));
  input_substituted.Increment(whole(before.substituted(), now.substituted()));
}

void WorkerMetrics::ShowStartPhase(const std::string& phase, absl::Duration time) {
  metrics_
      .Gauge("muster_worker_start_phase_seconds",
             "Time of one phase of the last start: data, graph, memory, compile",
             {{"phase", phase}})
      .Set(absl::ToDoubleSeconds(time));
}

}  // namespace muster
