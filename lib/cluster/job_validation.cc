#include "lib/cluster/job_validation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/cluster/limits.h"
#include "lib/cluster/resource_name.h"

namespace muster {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kHoldoutMin = 1e-6;  // below, every round(1/holdout)-th block is none
constexpr double kHoldoutMax = 0.5;
constexpr int kPriorityMax = 1000;
constexpr double kEpochsMax = 1e6;
constexpr double kRateMin = 1e-30;  // rates are floats in the kernels, where a smaller one may be 0
constexpr double kRateMax = 1e6;
constexpr int64_t kChunkBytesMultiple = 64;  // chunks start on cache lines
constexpr double kLossScaleMax = 1 << 24;    // half precision overflows long before
constexpr double kLossScaleDefault = 65536;
constexpr int64_t kGrowthStepsDefault = 2000;
constexpr char kOnnxLosses[] = "softmax_cross_entropy, sigmoid_cross_entropy or mean_squared_error";

class SpecCheck {
 public:
  explicit SpecCheck(const v1::JobSpec& spec) : spec_(spec) {}

  std::vector<FieldFault> Run() && {
    Name();
    Model();
    Data();
    Training();
    if (!v1::SyncMode_IsValid(spec_.sync().mode())) {
      Add("sync.mode", absl::StrCat("unknown mode ", spec_.sync().mode(), "; known: bsp"));
    }
    Resources();
    Checkpoint();
    InRange<int64_t>("priority", spec_.priority(), -kPriorityMax, kPriorityMax);
    ChunkBytes();
    return std::move(faults_);
  }

 private:
  void Add(std::string field, std::string description) {
    faults_.push_back({std::move(field), std::move(description)});
  }

  // [min, max]; false when a fault was added.
  template <typename Number>
  bool InRange(std::string field, Number value, Number min, Number max,
               absl::string_view advice = "") {
    if (value >= min && value <= max) return true;  // NaN is in no range
    Add(std::move(field), absl::StrCat("must be between ", min, " and ", max, " (is ", value, ")",
                                       advice.empty() ? "" : "; ", advice));
    return false;
  }

  bool AtLeast(std::string field, int64_t value, int64_t min, absl::string_view advice = "") {
    if (value >= min) return true;
    Add(std::move(field), absl::StrCat("must be at least ", min, " (is ", value, ")",
                                       advice.empty() ? "" : "; ", advice));
    return false;
  }

  void Finite(std::string field, double value) {
    if (!std::isfinite(value)) {
      Add(std::move(field), absl::StrCat("must be a finite number (is ", value, ")"));
    }
  }

  bool Positive(std::string field, double value, absl::string_view advice = "") {
    if (value > 0 && value < kInfinity) return true;
    Add(std::move(field), absl::StrCat("must be greater than 0 and finite (is ", value, ")",
                                       advice.empty() ? "" : "; ", advice));
    return false;
  }

  // Positive, and neither 0 nor infinite as a float.
  void Rate(const std::string& field, double value, absl::string_view advice = "") {
    if (Positive(field, value, advice)) InRange(field, value, kRateMin, kRateMax, advice);
  }

  void WeightDecay(const std::string& field, double value) {
    if (NotNegative(field, value)) InRange(field, value, 0.0, kRateMax);
  }

  bool NotNegative(std::string field, double value) {
    if (value >= 0 && value < kInfinity) return true;
    Add(std::move(field), absl::StrCat("must be 0 or more and finite (is ", value, ")"));
    return false;
  }

  // [0, 1)
  void Decay(std::string field, double value, absl::string_view advice) {
    if (value >= 0 && value < 1) return;
    Add(std::move(field),
        absl::StrCat("must be at least 0 and less than 1 (is ", value, "); ", advice));
  }

  void Path(const std::string& field, const std::string& path, absl::string_view what) {
    if (path.empty()) {
      Add(field, absl::StrCat("required: ", what));
    } else if (path.size() > limits::kPathBytesMax) {
      Add(field, absl::StrCat("a path may have at most ", limits::kPathBytesMax, " bytes (has ",
                              path.size(), ")"));
    } else if (path.find('\0') != std::string::npos) {
      Add(field, "a path cannot hold a NUL byte");
    }
  }

  void Name() {
    const std::string& name = spec_.name();
    if (name.empty()) {
      Add("name", "required: the job's name, for example char-gpt");
    } else if (!IsValidName(name)) {
      Add("name", absl::StrCat("must be lower-case letters, digits and '-', beginning and ending "
                               "with a letter or digit, at most ",
                               limits::kNameBytesMax, " characters (is \"",
                               name.substr(0, 2 * limits::kNameBytesMax), "\", ", name.size(),
                               " characters)"));
    }
  }

  void Model() {
    switch (spec_.model().source_case()) {
      case v1::ModelSpec::kZoo:
        if (spec_.model().zoo().name().empty()) {
          Add("model.zoo.name", "required: a model's name, for example gpt2 or resnet50");
        }
        return;
      case v1::ModelSpec::kOnnx:
        return Onnx(spec_.model().onnx());
      case v1::ModelSpec::SOURCE_NOT_SET:
        Add("model", "required: zoo: {name: gpt2} or onnx: {path: model.onnx}");
        return;
    }
  }

  void Onnx(const v1::OnnxModel& onnx) {
    Path("model.onnx.path", onnx.path(), "an ONNX file");
    TensorName("model.onnx.logits", onnx.logits());
    TensorName("model.onnx.labels", onnx.labels());
    const std::string& loss = onnx.loss();
    if (!loss.empty() && loss != "softmax_cross_entropy" && loss != "sigmoid_cross_entropy" &&
        loss != "mean_squared_error") {
      Add("model.onnx.loss", absl::StrCat("must be ", kOnnxLosses, " (is \"",
                                          loss.substr(0, 2 * limits::kNameBytesMax), "\")"));
    }
  }

  void TensorName(std::string field, const std::string& name) {
    if (name.size() > limits::kTensorNameBytesMax) {
      Add(std::move(field), absl::StrCat("a name may have at most ", limits::kTensorNameBytesMax,
                                         " bytes (has ", name.size(), ")"));
    }
  }

  void Holdout(std::string field, double holdout) {
    if (holdout == 0) return;
    InRange(std::move(field), holdout, kHoldoutMin, kHoldoutMax,
            "it is a share: 0.1 holds out a tenth, 0 nothing");
  }

  void Data() {
    const v1::DataSpec& data = spec_.data();
    switch (data.source_case()) {
      case v1::DataSpec::kText:
        Path("data.text.path", data.text().path(), "a file, or a folder of files");
        Holdout("data.text.holdout", data.text().holdout());
        break;
      case v1::DataSpec::kIdx:
        Idx(data.idx());
        break;
      case v1::DataSpec::kLinear:
        Linear(data.linear());
        break;
      case v1::DataSpec::kNpy:
        Npy(data.npy());
        break;
      case v1::DataSpec::kSynthetic:
        Synthetic(data.synthetic());
        break;
      case v1::DataSpec::SOURCE_NOT_SET:
        Add("data", "required: one of text, idx, linear, npy, synthetic");
        break;
    }
    BatchSize();
  }

  void Idx(const v1::IdxData& idx) {
    Path("data.idx.images", idx.images(), "an IDX file of images, plain or gzip");
    Path("data.idx.labels", idx.labels(), "an IDX file of labels, plain or gzip");
    Holdout("data.idx.holdout", idx.holdout());
    if (!idx.eval_images().empty()) {
      Path("data.idx.eval_images", idx.eval_images(), "");
      if (idx.holdout() != 0) {
        Add("data.idx.holdout",
            "not together with eval_images: evaluation uses either a share of the training "
            "samples or files of its own; remove one");
      }
    }
    if (!idx.eval_labels().empty()) Path("data.idx.eval_labels", idx.eval_labels(), "");
    if (idx.eval_images().empty() != idx.eval_labels().empty()) {
      const bool labels_missing = idx.eval_labels().empty();
      Add(labels_missing ? "data.idx.eval_labels" : "data.idx.eval_images",
          absl::StrCat("required together with ", labels_missing ? "eval_images" : "eval_labels"));
    }
  }

  void Linear(const v1::LinearData& linear) {
    Finite("data.linear.slope", linear.slope());
    Finite("data.linear.intercept", linear.intercept());
    NotNegative("data.linear.noise", linear.noise());
    MadeSamples("data.linear.samples", linear.samples(), limits::kLinearSamplesMax);
  }

  // Of a source that makes its samples.
  void MadeSamples(const std::string& field, int64_t samples, int64_t max) {
    if (InRange<int64_t>(field, samples, 1, max) && spec_.data().batch_size() > samples) {
      Add("data.batch_size",
          absl::StrCat("must be at most ", field, " = ", samples, " (is ",
                       spec_.data().batch_size(), "); make more samples or a smaller batch"));
    }
  }

  void Npy(const v1::NpyData& npy) {
    if (npy.inputs().empty()) {
      Add("data.npy.inputs", "required: a file per input of the model, input: images.npy");
    } else if (npy.inputs_size() > limits::kGraphInputsMax) {
      Add("data.npy.inputs",
          absl::StrCat("at most ", limits::kGraphInputsMax, " (has ", npy.inputs_size(), ")"));
    } else {
      const std::map<std::string, std::string> sorted(npy.inputs().begin(), npy.inputs().end());
      for (const auto& [name, path] : sorted) {
        TensorName("data.npy.inputs", name);
        Path(absl::StrCat("data.npy.inputs.", name.substr(0, limits::kTensorNameBytesMax)), path,
             "an .npy file");
      }
    }
    Holdout("data.npy.holdout", npy.holdout());
  }

  void Synthetic(const v1::SyntheticData& synthetic) {
    MadeSamples("data.synthetic.samples", synthetic.samples(), limits::kSyntheticSamplesMax);
    Holdout("data.synthetic.holdout", synthetic.holdout());
  }

  void BatchSize() {
    const int64_t batch = spec_.data().batch_size();
    if (!InRange<int64_t>("data.batch_size", batch, 1, limits::kBatchSizeMax,
                          "samples of one global batch, shared by all workers")) {
      return;
    }
    const v1::WorkerCount& workers = spec_.resources().workers();
    const int64_t most = std::max(workers.min(), workers.max());
    if (batch < most && most <= limits::kWorkersMax) {
      Add("data.batch_size",
          absl::StrCat("must be at least resources.workers.",
                       workers.max() >= workers.min() ? "max" : "min", " = ", most, " (is ", batch,
                       "): every worker needs a sample of each batch"));
    }
  }

  void Training() {
    const v1::TrainingSpec& training = spec_.training();
    switch (training.length_case()) {
      case v1::TrainingSpec::kSteps:
        InRange<int64_t>("training.steps", training.steps(), 1, limits::kStepsMax);
        break;
      case v1::TrainingSpec::kEpochs:
        if (Positive("training.epochs", training.epochs()) && training.epochs() > kEpochsMax) {
          Add("training.epochs",
              absl::StrCat("must be at most ", kEpochsMax, " (is ", training.epochs(), ")"));
        }
        break;
      case v1::TrainingSpec::LENGTH_NOT_SET:
        Add("training", "required: how long; steps: 1000 or epochs: 10");
        break;
    }
    Optimizer(training.optimizer());
    Schedule(training);
    AtLeast("training.evaluate_every_steps", training.evaluate_every_steps(), 0,
            "0 evaluates only at the end");
    if (!v1::Precision_IsValid(training.precision())) {
      Add("training.precision", absl::StrCat("unknown precision ", training.precision(),
                                             "; known: fp32, tf32, bf16, fp16"));
    }
    LossScale(training);
    Clip(training);
    InRange<int64_t>("training.micro_batch_size", training.micro_batch_size(), 0,
                     limits::kBatchSizeMax, "0 computes a device's share at once");
  }

  void LossScale(const v1::TrainingSpec& training) {
    if (!training.has_loss_scale()) return;
    if (training.precision() != v1::FP16) {
      Add("training.loss_scale", "only with precision: fp16, the others need none; remove it");
    }
    const v1::LossScale& scale = training.loss_scale();
    if (scale.has_initial()) {
      InRange("training.loss_scale.initial", scale.initial(), 1.0, kLossScaleMax,
              "65536 is the default");
    }
    InRange<int64_t>("training.loss_scale.growth_steps", scale.growth_steps(), 0, limits::kStepsMax,
                     "2000 is the default");
  }

  void Clip(const v1::TrainingSpec& training) {
    if (!training.has_clip()) return;
    switch (training.clip().kind_case()) {
      case v1::Clip::kGlobalNorm:
        return Rate("training.clip.global_norm", training.clip().global_norm(), "1 is usual");
      case v1::Clip::kValue:
        return Rate("training.clip.value", training.clip().value());
      case v1::Clip::KIND_NOT_SET:
        return Add("training.clip", "required: global_norm: 1 or value: 0.5");
    }
  }

  void Optimizer(const v1::Optimizer& optimizer) {
    const std::string path = "training.optimizer.";
    switch (optimizer.kind_case()) {
      case v1::Optimizer::kSgd: {
        const v1::Sgd& sgd = optimizer.sgd();
        LearningRate(path + "sgd", sgd.learning_rate());
        Decay(path + "sgd.momentum", sgd.momentum(), "0.9 is usual");
        if (sgd.nesterov() && sgd.momentum() == 0) {
          Add(path + "sgd.nesterov", "needs momentum (is 0); add momentum: 0.9");
        }
        WeightDecay(path + "sgd.weight_decay", sgd.weight_decay());
        return;
      }
      case v1::Optimizer::kAdam:
        return Adam(path + "adam", optimizer.adam());
      case v1::Optimizer::kAdamw:
        return Adam(path + "adamw", optimizer.adamw());
      case v1::Optimizer::kAdagrad: {
        const v1::Adagrad& adagrad = optimizer.adagrad();
        LearningRate(path + "adagrad", adagrad.learning_rate());
        if (adagrad.has_epsilon()) Rate(path + "adagrad.epsilon", adagrad.epsilon());
        WeightDecay(path + "adagrad.weight_decay", adagrad.weight_decay());
        return;
      }
      case v1::Optimizer::kRmsprop: {
        const v1::Rmsprop& rmsprop = optimizer.rmsprop();
        LearningRate(path + "rmsprop", rmsprop.learning_rate());
        if (rmsprop.has_alpha()) {
          Decay(path + "rmsprop.alpha", rmsprop.alpha(), "0.99 is the default");
        }
        if (rmsprop.has_epsilon()) Rate(path + "rmsprop.epsilon", rmsprop.epsilon());
        WeightDecay(path + "rmsprop.weight_decay", rmsprop.weight_decay());
        return;
      }
      case v1::Optimizer::KIND_NOT_SET:
        Add("training.optimizer", "required: one of sgd, adam, adamw, adagrad, rmsprop");
        return;
    }
  }

  void LearningRate(const std::string& path, double learning_rate) {
    Rate(path + ".learning_rate", learning_rate, "for example 1e-3");
  }

  void Adam(const std::string& path, const v1::Adam& adam) {
    LearningRate(path, adam.learning_rate());
    if (adam.has_beta1()) Decay(path + ".beta1", adam.beta1(), "0.9 is the default");
    if (adam.has_beta2()) Decay(path + ".beta2", adam.beta2(), "0.999 is the default");
    if (adam.has_epsilon()) Rate(path + ".epsilon", adam.epsilon(), "1e-8 is the default");
    WeightDecay(path + ".weight_decay", adam.weight_decay());
  }

  void Schedule(const v1::TrainingSpec& training) {
    const v1::Schedule& schedule = training.schedule();
    const std::string path = "training.schedule.";
    if (InRange<int64_t>(path + "warmup_steps", schedule.warmup_steps(), 0, limits::kStepsMax) &&
        training.has_steps() && training.steps() > 0 &&
        schedule.warmup_steps() >= training.steps()) {
      Add(path + "warmup_steps",
          absl::StrCat("must be less than training.steps = ", training.steps(), " (is ",
                       schedule.warmup_steps(), ")"));
    }
    switch (schedule.kind_case()) {
      case v1::Schedule::kStep:
        AtLeast(path + "step.every_steps", schedule.step().every_steps(), 1);
        Positive(path + "step.factor", schedule.step().factor(), "0.1 is usual");
        return;
      case v1::Schedule::kPoly:
        NotNegative(path + "poly.power", schedule.poly().power());
        InRange(path + "poly.final_ratio", schedule.poly().final_ratio(), 0.0, 1.0);
        return;
      case v1::Schedule::kCosine:
        InRange(path + "cosine.final_ratio", schedule.cosine().final_ratio(), 0.0, 1.0);
        return;
      case v1::Schedule::kConstant:
      case v1::Schedule::KIND_NOT_SET:
        return;
    }
  }

  void Resources() {
    const v1::ResourceSpec& resources = spec_.resources();
    const v1::WorkerCount& workers = resources.workers();
    InRange<int64_t>("resources.workers.min", workers.min(), 0, limits::kWorkersMax);
    if (InRange<int64_t>("resources.workers.max", workers.max(), 0, limits::kWorkersMax) &&
        workers.max() != 0 && workers.max() < workers.min()) {
      Add("resources.workers.max",
          absl::StrCat("must be at least min = ", workers.min(), " (is ", workers.max(), ")"));
    }
    InRange<int64_t>("resources.ps", resources.ps(), 0, limits::kPsMax);
  }

  void Checkpoint() {
    const v1::CheckpointSpec& checkpoint = spec_.checkpoint();
    AtLeast("checkpoint.every_steps", checkpoint.every_steps(), 0,
            "0 writes one checkpoint, at the end");
    AtLeast("checkpoint.keep_last", checkpoint.keep_last(), 0, "0 keeps all");
    const std::string& from = checkpoint.resume_from();
    if (from.empty()) return;
    Path("checkpoint.resume_from", from, "");
    if (!absl::StrContains(from, '/') && from[0] != '.' && !ParseCheckpointRef(from)) {
      Add("checkpoint.resume_from",
          absl::StrCat("must be a job id (char-gpt-7), job@step (char-gpt-7@1000) or a checkpoint "
                       "directory (is \"",
                       from.substr(0, 2 * limits::kNameBytesMax), "\")"));
    }
  }

  void ChunkBytes() {
    const int64_t bytes = spec_.chunk_bytes();
    if (bytes == 0) return;
    if (InRange("chunk_bytes", bytes, limits::kChunkBytesMin, limits::kChunkBytesMax) &&
        bytes % kChunkBytesMultiple != 0) {
      Add("chunk_bytes", absl::StrCat("must be a multiple of ", kChunkBytesMultiple, " (is ", bytes,
                                      "); try ", bytes - bytes % kChunkBytesMultiple));
    }
  }

  const v1::JobSpec& spec_;
  std::vector<FieldFault> faults_;
};

void FillAdam(v1::Adam& adam) {
  if (!adam.has_beta1()) adam.set_beta1(0.9);
  if (!adam.has_beta2()) adam.set_beta2(0.999);
  if (!adam.has_epsilon()) adam.set_epsilon(1e-8);
}

void FillOptimizer(v1::Optimizer& optimizer) {
  if (optimizer.has_adam()) FillAdam(*optimizer.mutable_adam());
  if (optimizer.has_adamw()) FillAdam(*optimizer.mutable_adamw());
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

}  // namespace

std::vector<FieldFault> ValidateJobSpec(const v1::JobSpec& spec) { return SpecCheck(spec).Run(); }

void FillDefaults(v1::JobSpec& spec) {
  FillOptimizer(*spec.mutable_training()->mutable_optimizer());
  FillSchedule(*spec.mutable_training()->mutable_schedule());
  FillTraining(*spec.mutable_training());
  if (spec.model().has_onnx()) FillOnnx(*spec.mutable_model()->mutable_onnx());
  if (spec.sync().mode() == v1::SYNC_MODE_UNSPECIFIED) spec.mutable_sync()->set_mode(v1::BSP);
  v1::WorkerCount& workers = *spec.mutable_resources()->mutable_workers();
  if (workers.min() == 0) workers.set_min(1);
  if (workers.max() == 0) workers.set_max(workers.min());
  if (spec.resources().ps() == 0) spec.mutable_resources()->set_ps(1);
  if (!spec.checkpoint().has_keep_last()) spec.mutable_checkpoint()->set_keep_last(3);
  if (spec.chunk_bytes() == 0) spec.set_chunk_bytes(limits::kChunkBytesDefault);
}

}  // namespace muster
