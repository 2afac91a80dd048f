// Trains a model of an ONNX file on recorded samples, beside the framework that recorded them.
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
//   every input, by its name   i32 or f32[2 B, ...]: two batches, taken in turn
//   losses                     f64[steps], of SGD with momentum from the values of the file
//   logits                     f32[...], of the first batch before the first step
//   learning_rate, momentum    f64[1]
//   noise                      f64[steps], may be missing: how far the losses there stray from
//                              `losses` up to this step, relative, for weights a rounding off
struct OnnxReplay {
  // A step's loss is right within this many times its noise. Losses are floats: the least noise.
  static constexpr double kNoisesMax = 3;
  static constexpr double kLeastNoise = 3e-7;

  // Relative to the recorded loss, the largest of all steps; infinite where one is not finite.
  double loss_difference = 0;
  // The same in units of the step's noise. Absent where the recording has none.
  absl::optional<double> loss_noises;
  // The largest, relative to the largest recorded logit. Absent where the loss reads no classes.
  absl::optional<double> logits_difference;

  std::vector<std::string> warnings;                                // of the import
  absl::flat_hash_map<std::string, std::vector<float>> parameters;  // trained, by name
  // Of the trained model in inference form for the first batch: logits, or the loss where the graph
  // has none.
  std::vector<float> inference;
};

// On the CPU, on one thread. Errors are those of ImportOnnx, TrainingGraph, Executor and
// ReadSafetensorsHeader; INVALID_ARGUMENT for a recording that does not fit the model.
absl::StatusOr<OnnxReplay> ReplayOnnx(const v1::OnnxModel& model, const std::string& recording);

// An object of JSON: "accepted"; where false "message", else "warnings", "loss_difference",
// "loss_noises" and "logits_difference", null where they are absent or not finite, and with noise
// "passed".
std::string JudgementLine(const absl::StatusOr<OnnxReplay>& replay);

}  // namespace muster
