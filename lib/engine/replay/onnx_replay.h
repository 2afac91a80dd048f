// Trains a model of an ONNX file on recorded samples and compares it with the framework that
// recorded them.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A recording is a safetensors file:
//
//   every input, by its name   i32 or f32[2 B, ...]: two batches, used alternately
//   losses                     f64[steps], of SGD with momentum from the values of the file
//   logits                     f32[...], of the first batch before the first step
//   learning_rate, momentum    f64[1]
//   noise                      f64[steps], optional: the relative change of the losses up to this
//                              step in that framework if the weights change by one rounding
struct OnnxReplay {
  // A step's loss is right within this many times its noise. Losses are floats, so the noise is at
  // least kLeastNoise.
  static constexpr double kNoisesMax = 3;
  static constexpr double kLeastNoise = 3e-7;

  // The largest relative difference of a loss to the recorded one, over all steps. Infinite if one
  // is not finite.
  double loss_difference = 0;
  // The largest difference in units of the step's noise. Absent if the recording has no noise.
  absl::optional<double> loss_noises;
  // The largest difference of a logit, relative to the largest recorded logit. Absent if the graph
  // has no logits.
  absl::optional<double> logits_difference;

  std::vector<std::string> warnings;                                // warnings of the import
  absl::flat_hash_map<std::string, std::vector<float>> parameters;  // trained, by name
  // The output of the trained model in inference form for the first batch: logits, or the loss if
  // the graph has none.
  std::vector<float> inference;
};

// Runs on the CPU, on one thread. Returns the errors of ImportOnnx, TrainingGraph, Executor and
// ReadSafetensorsHeader. Returns INVALID_ARGUMENT for a recording that does not fit the model.
absl::StatusOr<OnnxReplay> ReplayOnnx(const v1::OnnxModel& model, const std::string& recording);

// Returns a JSON object with "accepted". If that is false, it has "message". Otherwise it has
// "warnings", "loss_difference", "loss_noises" and "logits_difference", null if absent or not
// finite. With noise it also has "passed".
std::string JudgementLine(const absl::StatusOr<OnnxReplay>& replay);

}  // namespace muster
