#include "lib/job/job_validation.h"

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
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"

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
constexpr int kStalenessMax = 1000;
constexpr int64_t kLocalStepsMax = 1'000'000;
constexpr double kRatioMax = 0.5;  // an element that travels costs as much as one in fp32
constexpr int kRankMax = 64;
constexpr int kParameterGroupsMax = 64;  // each is compared with every parameter's name
constexpr int kPatternsMax = 64;
constexpr char kOnnxLosses[] =
    "softmax_cross_entropy, sigmoid_cross_entropy, mean_squared_error or output";

class SpecCheck {
 public:
  explicit SpecCheck(const v1::JobSpec& spec) : spec_(spec) {}

  std::vector<FieldFault> Run() && {
    Name();
    Model();
    Data();
    Training();
    Sync();
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
        loss != "mean_squared_error" && loss != "output") {
      Add("model.onnx.loss", absl::StrCat("must be ", kOnnxLosses, " (is \"",
                                          loss.substr(0, 2 * limits::kNameBytesMax), "\")"));
    }
    OnnxPatterns("model.onnx.train", onnx.train());
    OnnxPatterns("model.onnx.freeze", onnx.freeze());
    OnnxPatterns("model.onnx.tie", onnx.tie());
    OnnxPatterns("model.onnx.untie", onnx.untie());
  }

  void OnnxPatterns(const std::string& path,
                    const google::protobuf::RepeatedPtrField<std::string>& patterns) {
    if (patterns.size() > limits::kOnnxPatternsMax) {
      Add(path, absl::StrCat("at most ", limits::kOnnxPatternsMax, " (has ", patterns.size(), ")"));
    }
    for (int i = 0; i < std::min(patterns.size(), limits::kOnnxPatternsMax); ++i) {
      const std::string field = absl::StrCat(path, "[", i, "]");
      if (patterns[i].empty()) Add(field, "an empty pattern matches no name; \"*\" matches all");
      TensorName(field, patterns[i]);
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
    if (training.precision() == v1::FP16) {
      NeedsWholeSteps("training.precision", "fp16's loss scale depends on the norm of");
    }
    if (!v1::Precision_IsValid(training.precision())) {
      Add("training.precision", absl::StrCat("unknown precision ", training.precision(),
                                             "; known: fp32, tf32, bf16, fp16"));
    }
    LossScale(training);
    Clip(training);
    InRange<int64_t>("training.micro_batch_size", training.micro_batch_size(), 0,
                     limits::kBatchSizeMax, "0 computes a device's share at once");
    ParameterGroups(training);
  }

  void ParameterGroups(const v1::TrainingSpec& training) {
    if (training.parameter_groups_size() > kParameterGroupsMax) {
      Add("training.parameter_groups", absl::StrCat("at most ", kParameterGroupsMax, " (has ",
                                                    training.parameter_groups_size(), ")"));
      return;
    }
    for (int i = 0; i < training.parameter_groups_size(); ++i) {
      ParameterGroup(absl::StrCat("training.parameter_groups[", i, "]"),
                     training.parameter_groups(i));
    }
  }

  void ParameterGroup(const std::string& path, const v1::ParameterGroup& group) {
    Patterns(path + ".match", group);
    if (group.has_learning_rate_factor()) {
      Rate(path + ".learning_rate_factor", group.learning_rate_factor(),
           "frozen: true keeps parameters as they are");
    }
    if (!group.frozen()) return;
    for (const auto& [is_set, field] :
         {std::pair(group.has_learning_rate_factor(), ".learning_rate_factor"),
          std::pair(group.has_weight_decay(), ".weight_decay")}) {
      if (is_set) Add(path + field, "changes nothing of frozen parameters; remove it");
    }
  }

  void Patterns(const std::string& path, const v1::ParameterGroup& group) {
    if (group.match().empty()) {
      Add(path, "required: patterns of parameter names, for example [\"*.bias\", \"head.*\"]");
    } else if (group.match_size() > kPatternsMax) {
      Add(path, absl::StrCat("at most ", kPatternsMax, " (has ", group.match_size(), ")"));
      return;
    }
    for (int i = 0; i < group.match_size(); ++i) {
      const std::string field = absl::StrCat(path, "[", i, "]");
      if (group.match(i).empty()) Add(field, "an empty pattern matches no name; \"*\" matches all");
      TensorName(field, group.match(i));
    }
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
        NeedsWholeSteps("training.clip.global_norm", "the norm is of");
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
        return Adam(path + "adam", optimizer.adam(), "1e-8 is the default");
      case v1::Optimizer::kAdamw:
        return Adam(path + "adamw", optimizer.adamw(), "1e-8 is the default");
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
      case v1::Optimizer::kLamb:
        NeedsWholeSteps(path + "lamb", "a trust ratio is of");
        return Adam(path + "lamb", optimizer.lamb(), "1e-6 is the default");
      case v1::Optimizer::kLars:
        NeedsWholeSteps(path + "lars", "a trust ratio is of");
        return Lars(path + "lars", optimizer.lars());
      case v1::Optimizer::KIND_NOT_SET:
        Add("training.optimizer",
            "required: one of sgd, adam, adamw, adagrad, rmsprop, lamb, lars");
        return;
    }
  }

  void LearningRate(const std::string& path, double learning_rate) {
    Rate(path + ".learning_rate", learning_rate, "for example 1e-3");
  }

  // v1::Adam or v1::Lamb.
  template <typename AdamLike>
  void Adam(const std::string& path, const AdamLike& adam, absl::string_view usual_epsilon) {
    LearningRate(path, adam.learning_rate());
    if (adam.has_beta1()) Decay(path + ".beta1", adam.beta1(), "0.9 is the default");
    if (adam.has_beta2()) Decay(path + ".beta2", adam.beta2(), "0.999 is the default");
    if (adam.has_epsilon()) Rate(path + ".epsilon", adam.epsilon(), usual_epsilon);
    WeightDecay(path + ".weight_decay", adam.weight_decay());
  }

  void Lars(const std::string& path, const v1::Lars& lars) {
    LearningRate(path, lars.learning_rate());
    Decay(path + ".momentum", lars.momentum(), "0.9 is usual");
    WeightDecay(path + ".weight_decay", lars.weight_decay());
    if (lars.has_trust()) Rate(path + ".trust", lars.trust(), "0.001 is the default");
    if (lars.has_epsilon()) Rate(path + ".epsilon", lars.epsilon(), "1e-8 is the default");
  }

  // Of what reads the whole batch's gradient, of all shards, before any of it is applied.
  void NeedsWholeSteps(std::string field, absl::string_view because) {
    const v1::SyncMode mode = spec_.sync().mode();
    if (mode != v1::SSP && mode != v1::ASP && mode != v1::LOCAL_SGD) return;
    Add(std::move(field), absl::StrCat("not with sync.mode ", ModeName(mode), ": ", because,
                                       " the whole batch's gradient, which no step of ",
                                       ModeName(mode), " has; use bsp or allreduce"));
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

  static absl::string_view ModeName(v1::SyncMode mode) {
    switch (mode) {
      case v1::SSP:
        return "ssp";
      case v1::ASP:
        return "asp";
      case v1::LOCAL_SGD:
        return "local_sgd";
      case v1::ALLREDUCE:
        return "allreduce";
      default:
        return "bsp";
    }
  }

  // A field of sync that is set though its mode does not read it.
  void OnlyWith(std::string field, absl::string_view modes) {
    Add(std::move(field), absl::StrCat("only with sync.mode ", modes, " (is ",
                                       ModeName(spec_.sync().mode()), "); remove it"));
  }

  void Sync() {
    const v1::SyncSpec& sync = spec_.sync();
    const v1::SyncMode mode = sync.mode();
    if (!v1::SyncMode_IsValid(mode)) {
      Add("sync.mode",
          absl::StrCat("unknown mode ", mode, "; known: bsp, ssp, asp, local_sgd, allreduce"));
      return;
    }
    const bool is_bsp = mode == v1::BSP || mode == v1::SYNC_MODE_UNSPECIFIED;
    if (mode == v1::SSP) {
      InRange("sync.staleness", sync.staleness(), 0, kStalenessMax, "1 is the default");
    } else if (sync.staleness() != 0) {
      OnlyWith("sync.staleness", "ssp");
    }
    if (is_bsp) {
      BackupWorkers(sync.backup_workers());
    } else if (sync.backup_workers() != 0) {
      OnlyWith("sync.backup_workers", "bsp");
    }
    if (mode == v1::LOCAL_SGD) {
      InRange<int64_t>("sync.every", sync.every(), 2, kLocalStepsMax,
                       "steps between two averagings, for example 16");
    } else if (sync.every() != 0) {
      OnlyWith("sync.every", "local_sgd");
    }
    if (sync.staleness_aware() && mode != v1::SSP && mode != v1::ASP) {
      OnlyWith("sync.staleness_aware", "asp or ssp");
    }
    Compression(sync);
    Values(sync);
  }

  void BackupWorkers(int backup_workers) {
    const int workers = std::max(1, spec_.resources().workers().min());
    if (backup_workers < 0 || backup_workers >= workers) {
      Add("sync.backup_workers",
          absl::StrCat("must be at least 0 and less than resources.workers.min = ", workers,
                       " (is ", backup_workers, "): a step needs a worker's gradient"));
    }
  }

  void Compression(const v1::SyncSpec& sync) {
    if (!sync.has_compression()) return;
    const v1::Compression& compression = sync.compression();
    const v1::CompressionKind kind = compression.kind();
    if (kind == v1::COMPRESSION_KIND_UNSPECIFIED || !v1::CompressionKind_IsValid(kind)) {
      Add("sync.compression",
          "required: one of none, fp16, bf16, int8, topk, onebit, powersgd; for example {kind: "
          "topk, ratio: 0.01}");
      return;
    }
    if (kind != v1::COMPRESSION_NONE) NeedsPushesToPs("sync.compression");
    if (kind == v1::COMPRESSION_TOPK) {
      if (compression.ratio() != 0 &&
          !(compression.ratio() > 0 && compression.ratio() <= kRatioMax)) {
        Add("sync.compression.ratio",
            absl::StrCat("must be greater than 0 and at most ", kRatioMax, " (is ",
                         compression.ratio(), "); 0.01 is the default"));
      }
    } else if (compression.ratio() != 0) {
      Add("sync.compression.ratio", "only with kind: topk; remove it");
    }
    if (kind == v1::COMPRESSION_POWERSGD) {
      InRange("sync.compression.rank", compression.rank(), 0, kRankMax, "4 is the default");
    } else if (compression.rank() != 0) {
      Add("sync.compression.rank", "only with kind: powersgd; remove it");
    }
  }

  void Values(const v1::SyncSpec& sync) {
    if (!v1::WireValues_IsValid(sync.values())) {
      Add("sync.values", absl::StrCat("unknown type ", sync.values(), "; known: fp32, fp16, bf16"));
    } else if (sync.values() != v1::WIRE_VALUES_UNSPECIFIED && sync.values() != v1::VALUES_FP32) {
      NeedsPushesToPs("sync.values");
    }
  }

  // Of what makes messages between workers and ps smaller.
  void NeedsPushesToPs(std::string field) {
    if (spec_.sync().mode() == v1::ALLREDUCE) {
      Add(std::move(field),
          "not with sync.mode allreduce: sums travel from worker to worker, and each would add an "
          "error that no worker could feed back; remove it or use bsp");
    } else if (spec_.sync().mode() == v1::LOCAL_SGD) {
      Add(std::move(field),
          "not with sync.mode local_sgd: it sends values to be averaged, not gradients; remove it, "
          "or make sync.every larger to send less");
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
    if (spec_.sync().mode() == v1::ALLREDUCE && resources.ps() != 0) {
      Add("resources.ps", absl::StrCat("sync.mode allreduce has none (is ", resources.ps(),
                                       "): workers own the parameters; remove it"));
      return;
    }
    InRange<int64_t>("resources.ps", resources.ps(), 0, limits::kPsMax);
  }

  void Checkpoint() {
    const v1::CheckpointSpec& checkpoint = spec_.checkpoint();
    AtLeast("checkpoint.every_steps", checkpoint.every_steps(), 0,
            "0 writes one checkpoint, at the end");
    const int64_t every = spec_.sync().every();
    if (spec_.sync().mode() == v1::LOCAL_SGD && every > 0 &&
        checkpoint.every_steps() % every != 0) {
      Add("checkpoint.every_steps",
          absl::StrCat("must be a multiple of sync.every = ", every, " (is ",
                       checkpoint.every_steps(), "): workers agree only then; try ",
                       (checkpoint.every_steps() / every + 1) * every));
    }
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

// v1::Adam or v1::Lamb.
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

}  // namespace

std::vector<FieldFault> ValidateJobSpec(const v1::JobSpec& spec) { return SpecCheck(spec).Run(); }

void FillDefaults(v1::JobSpec& spec) {
  FillOptimizer(*spec.mutable_training()->mutable_optimizer());
  FillSchedule(*spec.mutable_training()->mutable_schedule());
  FillTraining(*spec.mutable_training());
  if (spec.model().has_onnx()) FillOnnx(*spec.mutable_model()->mutable_onnx());
  FillSync(*spec.mutable_sync());
  v1::WorkerCount& workers = *spec.mutable_resources()->mutable_workers();
  if (workers.min() == 0) workers.set_min(1);
  if (workers.max() == 0) workers.set_max(workers.min());
  if (spec.resources().ps() == 0 && spec.sync().mode() != v1::ALLREDUCE) {
    spec.mutable_resources()->set_ps(1);
  }
  if (!spec.checkpoint().has_keep_last()) spec.mutable_checkpoint()->set_keep_last(3);
  if (spec.chunk_bytes() == 0) spec.set_chunk_bytes(limits::kChunkBytesDefault);
}

}  // namespace muster
