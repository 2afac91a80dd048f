#include "lib/job/job_validation.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "lib/status/field_fault.h"

namespace muster::job_validation_test {
namespace {

using ::testing::HasSubstr;

v1::JobSpec GoodSpec() {
  v1::JobSpec spec;
  spec.set_name("line");
  spec.mutable_model()->mutable_zoo()->set_name("linear");
  spec.mutable_data()->mutable_linear()->set_samples(1000);
  spec.mutable_data()->set_batch_size(32);
  spec.mutable_training()->set_steps(100);
  spec.mutable_training()->mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
  return spec;
}

// Returns the one fault of a good spec after `damage`, as "field: description".
std::string FaultAfter(const std::function<void(v1::JobSpec&)>& damage) {
  v1::JobSpec spec = GoodSpec();
  damage(spec);
  const std::vector<FieldFault> faults = ValidateJobSpec(spec);
  EXPECT_EQ(faults.size(), 1);
  return faults.empty() ? "" : absl::StrCat(faults[0].field, ": ", faults[0].description);
}

TEST(JobValidationTest, AGoodSpecHasNoFaults) {
  EXPECT_THAT(ValidateJobSpec(GoodSpec()), ::testing::IsEmpty());
}

TEST(JobValidationTest, AnEmptySpecMissesEverythingThatIsRequired) {
  std::vector<std::string> fields;
  for (const FieldFault& fault : ValidateJobSpec({})) fields.push_back(fault.field);

  EXPECT_THAT(fields, ::testing::ElementsAre("name", "model", "data", "data.batch_size", "training",
                                             "training.optimizer"));
}

TEST(JobValidationTest, RefusesFieldsOfANewerClientAtTheirPath) {
  auto add_unknown = [](google::protobuf::Message& message, int number) {
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(number, 1);
  };
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { add_unknown(spec, 9001); }),
              HasSubstr("spec: has field number 9001, which this coordinator does not know"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                auto& sgd = *spec.mutable_training()->mutable_optimizer()->mutable_sgd();
                add_unknown(sgd, 9002);
                add_unknown(sgd, 9001);
              }),
              HasSubstr("training.optimizer.sgd: has field numbers 9001, 9002,"));
}

TEST(JobValidationTest, RefusesASpecThatIsTooLarge) {
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_checkpoint()->set_resume_from(std::string(2 << 20, 'x'));
              }),
              HasSubstr("spec: must be at most 1048576 bytes (is 2097"));
}

TEST(JobValidationTest, NamesAreKubernetesLabels) {
  for (const char* name : {"Char", "-a", "a-", "a_b", "a.b", "jobs/x", "a b", "ä",
                           "a12345678901234567890123456789012345678901"}) {
    EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { spec.set_name(name); }),
                HasSubstr("name: must be lower-case letters"))
        << name;
  }
}

TEST(JobValidationTest, EveryWorkerNeedsASampleOfTheBatch) {
  EXPECT_EQ(FaultAfter([](v1::JobSpec& spec) {
              spec.mutable_data()->set_batch_size(2);
              spec.mutable_resources()->mutable_workers()->set_min(1);
              spec.mutable_resources()->mutable_workers()->set_max(4);
            }),
            "data.batch_size: must be at least resources.workers.max = 4 (is 2): every worker "
            "needs a sample of each batch");
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_data()->set_batch_size(2);
                spec.mutable_resources()->mutable_workers()->set_min(3);
              }),
              HasSubstr("at least resources.workers.min = 3 (is 2)"));
}

TEST(JobValidationTest, ChecksRangesOfData) {
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_data()->set_batch_size(0); }),
              HasSubstr("data.batch_size: must be between 1 and 1048576 (is missing or 0)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_data()->set_batch_size(2000); }),
              HasSubstr("must be at most data.linear.samples = 1000 (is 2000)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_data()->mutable_text(); }),
              HasSubstr("data.text.path: required"));
  EXPECT_THAT(
      FaultAfter(
          [](v1::JobSpec& spec) { spec.mutable_data()->mutable_text()->set_path("s3://b/x"); }),
      HasSubstr(
          "data.text.path: s3://b/x: object stores and URLs are not read; mount the storage"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_data()->mutable_text()->set_path("x");
                spec.mutable_data()->mutable_text()->set_holdout(0.6);
              }),
              HasSubstr("data.text.holdout: must be between 1e-06 and 0.5 (is 0.6)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_data()->mutable_text()->set_path(std::string(5000, 'x'));
              }),
              HasSubstr("data.text.path: a path may have at most 4096 bytes (has 5000)"));
  for (const std::string& path :
       {std::string("x\0", 2), std::string("x\ny"), std::string("\x1b[2J")}) {
    EXPECT_THAT(
        FaultAfter([&](v1::JobSpec& spec) { spec.mutable_data()->mutable_text()->set_path(path); }),
        HasSubstr("data.text.path: a path cannot hold control characters"));
  }
  EXPECT_THAT(
      FaultAfter([](v1::JobSpec& spec) { spec.mutable_data()->mutable_linear()->set_noise(-1); }),
      HasSubstr("data.linear.noise: must be 0 or more"));
}

TEST(JobValidationTest, EvaluationFilesComeInPairsAndWithoutHoldout) {
  auto idx = [](v1::JobSpec& spec) -> v1::IdxData& {
    v1::IdxData& data = *spec.mutable_data()->mutable_idx();
    data.set_images("images");
    data.set_labels("labels");
    return data;
  };
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { idx(spec).set_eval_images("x"); }),
              HasSubstr("data.idx.eval_labels: required together with eval_images"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { idx(spec).set_eval_labels("x"); }),
              HasSubstr("data.idx.eval_images: required together with eval_labels"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                idx(spec).set_eval_images("x");
                idx(spec).set_eval_labels("y");
                idx(spec).set_holdout(0.1);
              }),
              HasSubstr("data.idx.holdout: not together with eval_images"));
}

TEST(JobValidationTest, ChecksNpyAndSyntheticData) {
  auto npy = [](v1::JobSpec & spec) -> auto& {
    return *spec.mutable_data()->mutable_npy()->mutable_inputs();
  };
  v1::JobSpec good = GoodSpec();
  npy(good)["tokens"] = "tokens.npy";
  EXPECT_THAT(ValidateJobSpec(good), ::testing::IsEmpty());
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_data()->mutable_npy(); }),
              HasSubstr("data.npy.inputs: required: a file per input of the model"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { npy(spec)["tokens"] = ""; }),
              HasSubstr("data.npy.inputs.tokens: required: an .npy file"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { npy(spec)[std::string(300, 'x')] = "x"; }),
              HasSubstr("a name may have at most 256 bytes (has 300)"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                for (int i = 0; i < 65; ++i) npy(spec)[absl::StrCat("x", i)] = "x";
              }),
              HasSubstr("data.npy.inputs: at most 64 (has 65)"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                npy(spec)["x"] = "x";
                spec.mutable_data()->mutable_npy()->set_holdout(0.7);
              }),
              HasSubstr("data.npy.holdout: must be between"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_data()->mutable_synthetic(); }),
              HasSubstr("data.synthetic.samples: must be between 1 and"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_data()->mutable_synthetic()->set_samples(31);
              }),
              HasSubstr("data.batch_size: must be at most data.synthetic.samples = 31 (is 32)"));
}

TEST(JobValidationTest, ChecksAnOnnxModel) {
  auto onnx = [](v1::JobSpec& spec) -> v1::OnnxModel& {
    return *spec.mutable_model()->mutable_onnx();
  };
  v1::JobSpec good = GoodSpec();
  onnx(good).set_path("model.onnx");
  EXPECT_THAT(ValidateJobSpec(good), ::testing::IsEmpty());
  FillDefaults(good);
  EXPECT_EQ(onnx(good).labels(), "target");
  EXPECT_EQ(onnx(good).loss(), "softmax_cross_entropy");
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { onnx(spec); }),
              HasSubstr("model.onnx.path: required: an ONNX file"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                onnx(spec).set_path("model.onnx");
                onnx(spec).set_loss("hinge");
              }),
              HasSubstr("model.onnx.loss: must be softmax_cross_entropy, sigmoid_cross_entropy, "
                        "mean_squared_error or output (is \"hinge\")"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                onnx(spec).set_path("model.onnx");
                onnx(spec).add_untie("a.*");
                onnx(spec).add_untie("");
              }),
              HasSubstr("model.onnx.untie[1]: an empty pattern matches no name"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                onnx(spec).set_path("model.onnx");
                onnx(spec).set_logits(std::string(257, 'x'));
              }),
              HasSubstr("model.onnx.logits: a name may have at most 256 bytes (has 257)"));
}

TEST(JobValidationTest, ChecksPrecisionAndClipping) {
  auto training = [](v1::JobSpec& spec) -> v1::TrainingSpec& { return *spec.mutable_training(); };
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                training(spec).set_precision(static_cast<v1::Precision>(9));
              }),
              HasSubstr("training.precision: unknown precision 9"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                training(spec).set_precision(v1::BF16);
                training(spec).mutable_loss_scale()->set_initial(1024);
              }),
              HasSubstr("training.loss_scale: only with precision: fp16"));
  for (double initial : {0.5, 1e9, std::nan("")}) {
    EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                  training(spec).set_precision(v1::FP16);
                  training(spec).mutable_loss_scale()->set_initial(initial);
                }),
                HasSubstr("training.loss_scale.initial: must be between 1 and"));
  }
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { training(spec).mutable_clip(); }),
              HasSubstr("training.clip: required: global_norm: 1 or value: 0.5"));
  EXPECT_THAT(
      FaultAfter([&](v1::JobSpec& spec) { training(spec).mutable_clip()->set_global_norm(0); }),
      HasSubstr("training.clip.global_norm: must be greater than 0"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { training(spec).mutable_clip()->set_value(-1); }),
              HasSubstr("training.clip.value: must be greater than 0"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { training(spec).set_micro_batch_size(-1); }),
              HasSubstr("training.micro_batch_size: must be between 0 and"));
}

TEST(JobValidationTest, ChecksTheLengthOfTraining) {
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_training()->set_steps(0); }),
              HasSubstr("training.steps: must be between 1 and"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_training()->set_epochs(-1); }),
              HasSubstr("training.epochs: must be greater than 0"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_training()->set_epochs(1e300); }),
              HasSubstr("training.epochs: must be at most 1e+06 (is 1e+300)"));
  EXPECT_THAT(
      FaultAfter([](v1::JobSpec& spec) { spec.mutable_training()->set_evaluate_every_steps(-1); }),
      HasSubstr("training.evaluate_every_steps: must be at least 0 (is -1)"));
}

TEST(JobValidationTest, ChecksOptimizers) {
  auto optimizer = [](v1::JobSpec& spec) { return spec.mutable_training()->mutable_optimizer(); };
  for (double rate : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                  optimizer(spec)->mutable_sgd()->set_learning_rate(rate);
                }),
                HasSubstr("training.optimizer.sgd.learning_rate: must be greater than 0"))
        << rate;
  }
  for (double rate : {1e39, 1e7, 1e-50}) {
    EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                  optimizer(spec)->mutable_sgd()->set_learning_rate(rate);
                }),
                HasSubstr("sgd.learning_rate: must be between 1e-30 and 1e+06 (is "))
        << rate;
  }
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                optimizer(spec)->mutable_adam()->set_learning_rate(1);
                optimizer(spec)->mutable_adam()->set_epsilon(1e-300);
              }),
              HasSubstr("adam.epsilon: must be between 1e-30 and 1e+06"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                optimizer(spec)->mutable_sgd()->set_weight_decay(1e39);
              }),
              HasSubstr("sgd.weight_decay: must be between 0 and 1e+06"));
  EXPECT_EQ(
      FaultAfter([&](v1::JobSpec& spec) { optimizer(spec)->mutable_sgd()->set_nesterov(true); }),
      "training.optimizer.sgd.nesterov: needs momentum (is 0); add momentum: 0.9");
  EXPECT_THAT(
      FaultAfter([&](v1::JobSpec& spec) { optimizer(spec)->mutable_sgd()->set_momentum(1); }),
      HasSubstr("sgd.momentum: must be at least 0 and less than 1 (is 1)"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                optimizer(spec)->mutable_adam()->set_learning_rate(1);
                optimizer(spec)->mutable_adam()->set_beta2(1);
              }),
              HasSubstr("adam.beta2: must be at least 0 and less than 1 (is 1); 0.999 is"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                optimizer(spec)->mutable_adamw()->set_learning_rate(1);
                optimizer(spec)->mutable_adamw()->set_epsilon(0);
              }),
              HasSubstr("adamw.epsilon: must be greater than 0"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                optimizer(spec)->mutable_adagrad()->set_learning_rate(1);
                optimizer(spec)->mutable_adagrad()->set_weight_decay(-0.1);
              }),
              HasSubstr("adagrad.weight_decay: must be 0 or more"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                optimizer(spec)->mutable_rmsprop()->set_learning_rate(1);
                optimizer(spec)->mutable_rmsprop()->set_alpha(-0.1);
              }),
              HasSubstr("rmsprop.alpha: must be at least 0"));
}

TEST(JobValidationTest, ChecksLambAndLars) {
  auto optimizer = [](v1::JobSpec& spec) { return spec.mutable_training()->mutable_optimizer(); };
  auto lamb = [&](v1::JobSpec& spec) {
    optimizer(spec)->mutable_lamb()->set_learning_rate(1);
    return optimizer(spec)->mutable_lamb();
  };
  auto lars = [&](v1::JobSpec& spec) {
    optimizer(spec)->mutable_lars()->set_learning_rate(1);
    return optimizer(spec)->mutable_lars();
  };
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { lamb(spec)->set_learning_rate(0); }),
              HasSubstr("lamb.learning_rate: must be greater than 0"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { lamb(spec)->set_beta1(1); }),
              HasSubstr("lamb.beta1: must be at least 0 and less than 1"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { lamb(spec)->set_epsilon(0); }),
              HasSubstr("lamb.epsilon: must be greater than 0 and finite (is 0); 1e-6 is"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { lars(spec)->set_momentum(1); }),
              HasSubstr("lars.momentum: must be at least 0 and less than 1"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { lars(spec)->set_trust(0); }),
              HasSubstr("lars.trust: must be greater than 0"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) { lars(spec)->set_weight_decay(-1); }),
              HasSubstr("lars.weight_decay: must be 0 or more"));
}

TEST(JobValidationTest, ChecksThatEveryFieldOfSyncBelongsToItsMode) {
  auto with = [](v1::SyncMode mode, const std::function<void(v1::SyncSpec&)>& set) {
    return FaultAfter([&](v1::JobSpec& spec) {
      spec.mutable_sync()->set_mode(mode);
      if (mode == v1::LOCAL_SGD) spec.mutable_sync()->set_every(4);
      set(*spec.mutable_sync());
    });
  };
  EXPECT_EQ(with(v1::ASP, [](v1::SyncSpec& sync) { sync.set_staleness(2); }),
            "sync.staleness: only with sync.mode ssp (is asp); remove it");
  EXPECT_EQ(with(v1::SSP, [](v1::SyncSpec& sync) { sync.set_staleness(1001); }),
            "sync.staleness: must be between 0 and 1000 (is 1001); 1 is the default");
  EXPECT_EQ(with(v1::ALLREDUCE, [](v1::SyncSpec& sync) { sync.set_backup_workers(1); }),
            "sync.backup_workers: only with sync.mode bsp (is allreduce); remove it");
  EXPECT_EQ(with(v1::BSP, [](v1::SyncSpec& sync) { sync.set_backup_workers(1); }),
            "sync.backup_workers: must be at least 0 and less than resources.workers.min = 1 (is "
            "1): a step needs a worker's gradient");
  EXPECT_EQ(with(v1::BSP, [](v1::SyncSpec& sync) { sync.set_every(8); }),
            "sync.every: only with sync.mode local_sgd (is bsp); remove it");
  for (const int64_t every : {0, 1, 1'000'001}) {
    EXPECT_THAT(with(v1::LOCAL_SGD, [=](v1::SyncSpec& sync) { sync.set_every(every); }),
                HasSubstr("sync.every: must be between 2 and 1000000"));
  }
  EXPECT_EQ(with(v1::BSP, [](v1::SyncSpec& sync) { sync.set_staleness_aware(true); }),
            "sync.staleness_aware: only with sync.mode asp or ssp (is bsp); remove it");
  for (const v1::SyncMode mode : {v1::LOCAL_SGD, v1::ALLREDUCE}) {
    EXPECT_THAT(with(mode, [](v1::SyncSpec& sync) { sync.set_values(v1::VALUES_FP16); }),
                HasSubstr("sync.values: not with sync.mode"));
    EXPECT_THAT(with(mode,
                     [](v1::SyncSpec& sync) {
                       sync.mutable_compression()->set_kind(v1::COMPRESSION_INT8);
                     }),
                HasSubstr("sync.compression: not with sync.mode"));
  }
}

TEST(JobValidationTest, LogicalWorkersRefuseWhatDependsOnTheNumberOfWorkers) {
  const auto fault = [](const std::function<void(v1::JobSpec&)>& change) -> std::string {
    v1::JobSpec spec = GoodSpec();
    spec.mutable_data()->set_batch_size(8);
    spec.mutable_resources()->mutable_workers()->set_min(2);
    spec.mutable_resources()->mutable_workers()->set_max(4);
    spec.mutable_resources()->mutable_workers()->set_logical(6);
    change(spec);
    const std::vector<FieldFault> faults = ValidateJobSpec(spec);
    EXPECT_LE(faults.size(), 1);
    return faults.empty() ? "" : absl::StrCat(faults[0].field, ": ", faults[0].description);
  };
  const auto logical = [&](int number) {
    return fault([=](v1::JobSpec& spec) {
      spec.mutable_resources()->mutable_workers()->set_logical(number);
    });
  };
  for (const int number : {0, 4, 6, 8}) EXPECT_EQ(logical(number), "") << number;
  EXPECT_EQ(logical(3),
            "resources.workers.logical: must be at least max = 4 (is 3): every worker computes at "
            "least one share of the batch; use fewer workers, or submit the job with a larger "
            "logical");
  EXPECT_EQ(logical(9),
            "resources.workers.logical: must be at most data.batch_size = 8 (is 9): every share "
            "needs a sample");
  for (const int number : {-1, 1025}) {
    EXPECT_THAT(logical(number), HasSubstr("must be between 0 and 1024")) << number;
  }
  const auto in_mode = [&](v1::SyncMode mode) {
    return fault([=](v1::JobSpec& spec) {
      spec.mutable_sync()->set_mode(mode);
      if (mode == v1::LOCAL_SGD) spec.mutable_sync()->set_every(4);
    });
  };
  EXPECT_EQ(in_mode(v1::BSP), "");
  EXPECT_EQ(in_mode(v1::LOCAL_SGD),
            "resources.workers.logical: only with sync.mode bsp (is local_sgd): the update depends "
            "on the number of workers; remove it");
  EXPECT_THAT(in_mode(v1::ALLREDUCE), HasSubstr("not with sync.mode allreduce: the order of its"));
  EXPECT_THAT(
      fault([](v1::JobSpec& spec) { spec.mutable_sync()->set_backup_workers(1); }),
      HasSubstr("not with sync.backup_workers (is 1): timing decides which gradients a step has; "
                "remove one of them"));
  const auto compressed = [&](v1::CompressionKind kind) {
    return fault(
        [=](v1::JobSpec& spec) { spec.mutable_sync()->mutable_compression()->set_kind(kind); });
  };
  EXPECT_EQ(compressed(v1::COMPRESSION_NONE), "");
  EXPECT_THAT(compressed(v1::COMPRESSION_BF16), HasSubstr("not with sync.compression bf16: it"));
  EXPECT_THAT(fault([](v1::JobSpec& spec) { spec.mutable_training()->set_micro_batch_size(2); }),
              HasSubstr("not with training.micro_batch_size (is 2): a share is computed at once"));
  const auto deterministic = [&](bool is_set) {
    return fault([=](v1::JobSpec& spec) { spec.mutable_training()->set_deterministic(is_set); });
  };
  EXPECT_EQ(deterministic(true), "");
  EXPECT_THAT(deterministic(false),
              HasSubstr("needs training.deterministic, which is false; remove that line"));
}

TEST(JobValidationTest, EveryModeHasAGoodSpec) {
  for (const v1::SyncMode mode : {v1::BSP, v1::SSP, v1::ASP, v1::LOCAL_SGD, v1::ALLREDUCE}) {
    v1::JobSpec spec = GoodSpec();
    spec.mutable_sync()->set_mode(mode);
    if (mode == v1::LOCAL_SGD) spec.mutable_sync()->set_every(4);
    spec.mutable_sync()->mutable_compression()->set_kind(v1::COMPRESSION_NONE);
    spec.mutable_sync()->set_values(v1::VALUES_FP32);
    EXPECT_THAT(ValidateJobSpec(spec), ::testing::IsEmpty()) << v1::SyncMode_Name(mode);
    FillDefaults(spec);
    EXPECT_THAT(ValidateJobSpec(spec), ::testing::IsEmpty()) << v1::SyncMode_Name(mode);
  }
  v1::JobSpec spec = GoodSpec();
  spec.mutable_sync()->set_backup_workers(1);
  spec.mutable_resources()->mutable_workers()->set_min(2);
  EXPECT_THAT(ValidateJobSpec(spec), ::testing::IsEmpty());
}

TEST(JobValidationTest, ChecksCompression) {
  auto compression = [](const std::function<void(v1::Compression&)>& set) {
    return FaultAfter([&](v1::JobSpec& spec) { set(*spec.mutable_sync()->mutable_compression()); });
  };
  EXPECT_THAT(compression([](v1::Compression&) {}),
              HasSubstr("sync.compression: required: one of none, fp16, bf16, int8, topk"));
  for (const double ratio : {-0.1, 0.51, std::nan("")}) {
    EXPECT_THAT(compression([=](v1::Compression& topk) {
                  topk.set_kind(v1::COMPRESSION_TOPK);
                  topk.set_ratio(ratio);
                }),
                HasSubstr("sync.compression.ratio: must be greater than 0 and at most 0.5 (is "));
  }
  for (const int rank : {-1, 65}) {
    EXPECT_THAT(compression([=](v1::Compression& powersgd) {
                  powersgd.set_kind(v1::COMPRESSION_POWERSGD);
                  powersgd.set_rank(rank);
                }),
                HasSubstr("sync.compression.rank: must be between 0 and 64 (is "));
  }
  EXPECT_EQ(compression([](v1::Compression& int8) {
              int8.set_kind(v1::COMPRESSION_INT8);
              int8.set_ratio(0.1);
            }),
            "sync.compression.ratio: only with kind: topk; remove it");
  EXPECT_EQ(compression([](v1::Compression& topk) {
              topk.set_kind(v1::COMPRESSION_TOPK);
              topk.set_rank(4);
            }),
            "sync.compression.rank: only with kind: powersgd; remove it");
}

TEST(JobValidationTest, SettingsThatReadTheWholeGradientNeedWholeSteps) {
  for (const v1::SyncMode mode : {v1::SSP, v1::ASP, v1::LOCAL_SGD}) {
    auto with = [&](const std::function<void(v1::TrainingSpec&)>& set) {
      return FaultAfter([&](v1::JobSpec& spec) {
        spec.mutable_sync()->set_mode(mode);
        if (mode == v1::LOCAL_SGD) spec.mutable_sync()->set_every(4);
        set(*spec.mutable_training());
      });
    };
    EXPECT_THAT(with([](v1::TrainingSpec& t) { t.set_precision(v1::FP16); }),
                HasSubstr("training.precision: not with sync.mode "));
    EXPECT_THAT(with([](v1::TrainingSpec& t) { t.mutable_clip()->set_global_norm(1); }),
                HasSubstr("training.clip.global_norm: not with sync.mode "));
    EXPECT_THAT(with([](v1::TrainingSpec& t) {
                  t.mutable_optimizer()->mutable_lamb()->set_learning_rate(1);
                }),
                HasSubstr("training.optimizer.lamb: not with sync.mode "));
    EXPECT_THAT(with([](v1::TrainingSpec& t) {
                  t.mutable_optimizer()->mutable_lars()->set_learning_rate(1);
                }),
                HasSubstr("training.optimizer.lars: not with sync.mode "));
  }
  v1::JobSpec spec = GoodSpec();
  spec.mutable_sync()->set_mode(v1::ALLREDUCE);
  spec.mutable_training()->set_precision(v1::FP16);
  spec.mutable_training()->mutable_clip()->set_global_norm(1);
  spec.mutable_training()->mutable_optimizer()->mutable_lamb()->set_learning_rate(1);
  EXPECT_THAT(ValidateJobSpec(spec), ::testing::IsEmpty());
}

TEST(JobValidationTest, AllReduceHasNoPs) {
  EXPECT_EQ(FaultAfter([](v1::JobSpec& spec) {
              spec.mutable_sync()->set_mode(v1::ALLREDUCE);
              spec.mutable_resources()->set_ps(2);
            }),
            "resources.ps: sync.mode allreduce has none (is 2): workers own the parameters; remove "
            "it");
  v1::JobSpec spec = GoodSpec();
  spec.mutable_sync()->set_mode(v1::ALLREDUCE);
  FillDefaults(spec);
  EXPECT_EQ(spec.resources().ps(), 0);
}

TEST(JobValidationTest, ReplicationNeedsTwoPsAndOneVersionOfAllShards) {
  const auto fault_with = [](auto change) {
    return FaultAfter([change](v1::JobSpec& spec) {
      spec.mutable_resources()->set_ps(2);
      spec.mutable_resources()->set_ps_replication(2);
      change(spec);
    });
  };
  v1::JobSpec good = GoodSpec();
  good.mutable_resources()->set_ps(2);
  good.mutable_resources()->set_ps_replication(2);
  EXPECT_THAT(ValidateJobSpec(good), ::testing::IsEmpty());
  EXPECT_EQ(fault_with([](v1::JobSpec& spec) { spec.mutable_resources()->clear_ps(); }),
            "resources.ps_replication: 2 needs resources.ps of at least 2 (is 1): every parameter "
            "is held by two of them");
  EXPECT_THAT(fault_with([](v1::JobSpec& spec) { spec.mutable_sync()->set_mode(v1::ASP); }),
              HasSubstr("resources.ps_replication: 2 works with sync.mode bsp only (is asp)"));
  EXPECT_THAT(fault_with([](v1::JobSpec& spec) {
                spec.mutable_resources()->mutable_workers()->set_min(3);
                spec.mutable_sync()->set_backup_workers(1);
              }),
              HasSubstr("resources.ps_replication: 2 does not work with sync.backup_workers"));
  EXPECT_EQ(fault_with([](v1::JobSpec& spec) { spec.mutable_resources()->set_ps_replication(3); }),
            "resources.ps_replication: must be between 0 and 2 (is 3)");
}

TEST(JobValidationTest, TensorParallelIsANumberOfDevices) {
  for (const int degree : {-1, 65}) {
    EXPECT_EQ(
        FaultAfter(
            [=](v1::JobSpec& spec) { spec.mutable_resources()->set_tensor_parallel(degree); }),
        absl::StrCat("resources.tensor_parallel: must be between 0 and 64 (is ", degree, ")"));
  }
  v1::JobSpec good = GoodSpec();
  good.mutable_resources()->set_tensor_parallel(64);
  EXPECT_THAT(ValidateJobSpec(good), ::testing::IsEmpty());
}

TEST(JobValidationTest, LocalSgdIsCheckpointedWhenItsWorkersAgree) {
  EXPECT_EQ(FaultAfter([](v1::JobSpec& spec) {
              spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
              spec.mutable_sync()->set_every(16);
              spec.mutable_checkpoint()->set_every_steps(100);
            }),
            "checkpoint.every_steps: must be a multiple of sync.every = 16 (is 100): workers agree "
            "only then; try 112");
}

TEST(JobValidationTest, ChecksParameterGroups) {
  auto group = [](const std::function<void(v1::ParameterGroup&)>& set) {
    return FaultAfter([&](v1::JobSpec& spec) {
      spec.mutable_training()->add_parameter_groups()->add_match("*");
      set(*spec.mutable_training()->add_parameter_groups());
    });
  };
  EXPECT_THAT(group([](v1::ParameterGroup& g) { g.set_frozen(true); }),
              HasSubstr("training.parameter_groups[1].match: required: patterns"));
  EXPECT_THAT(group([](v1::ParameterGroup& g) { g.add_match(""); }),
              HasSubstr("training.parameter_groups[1].match[0]: an empty pattern"));
  EXPECT_THAT(
      group([](v1::ParameterGroup& g) { g.add_match(std::string(257, '*')); }),
      HasSubstr("parameter_groups[1].match[0]: a name may have at most 256 bytes (has 257"));
  EXPECT_THAT(group([](v1::ParameterGroup& g) {
                for (int i = 0; i < 65; ++i) g.add_match("a");
              }),
              HasSubstr("training.parameter_groups[1].match: at most 64 (has 65)"));
  EXPECT_THAT(group([](v1::ParameterGroup& g) {
                g.add_match("a");
                g.set_learning_rate_factor(0);
              }),
              HasSubstr("parameter_groups[1].learning_rate_factor: must be greater than 0"));
  EXPECT_EQ(group([](v1::ParameterGroup& g) {
              g.add_match("a");
              g.set_frozen(true);
              g.set_weight_decay(false);
            }),
            "training.parameter_groups[1].weight_decay: has no effect on frozen parameters; "
            "remove it");
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                for (int i = 0; i < 65; ++i) spec.mutable_training()->add_parameter_groups();
              }),
              HasSubstr("training.parameter_groups: at most 64 (has 65)"));
}

TEST(JobValidationTest, ChecksTheWeightDecayOfAGroup) {
  auto group = [](const std::function<void(v1::ParameterGroup&)>& set) {
    return FaultAfter([&](v1::JobSpec& spec) {
      spec.mutable_training()->add_parameter_groups()->add_match("*");
      set(*spec.mutable_training()->mutable_parameter_groups(0));
    });
  };
  EXPECT_THAT(group([](v1::ParameterGroup& g) { g.set_decay(-1); }),
              HasSubstr("training.parameter_groups[0].decay: must be 0 or more"));
  EXPECT_THAT(group([](v1::ParameterGroup& g) {
                g.set_decay(0.1);
                g.set_weight_decay(true);
              }),
              HasSubstr("training.parameter_groups[0].decay: not together with weight_decay"));
  EXPECT_THAT(group([](v1::ParameterGroup& g) {
                g.set_decay(0.1);
                g.set_frozen(true);
              }),
              HasSubstr("parameter_groups[0].decay: has no effect on frozen parameters"));
  v1::JobSpec good = GoodSpec();
  good.mutable_training()->add_parameter_groups()->add_match("*");
  good.mutable_training()->mutable_parameter_groups(0)->set_decay(0);
  EXPECT_THAT(ValidateJobSpec(good), ::testing::IsEmpty());
}

v1::JobSpec ExternalSpec() {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_model()->mutable_external()->set_path("model.safetensors");
  spec.mutable_data()->mutable_external();
  spec.mutable_program()->add_command("python3");
  (*spec.mutable_program()->mutable_environment())["_A1"] = "";
  return spec;
}

// Returns the one fault of an external job after `damage`.
std::string ExternalFaultAfter(const std::function<void(v1::JobSpec&)>& damage) {
  return FaultAfter([&](v1::JobSpec& spec) { damage(spec = ExternalSpec()); });
}

TEST(JobValidationTest, AnExternalModelExcludesWhatItsProgramDoes) {
  v1::JobSpec good = ExternalSpec();
  good.mutable_sync()->set_mode(v1::ASP);
  good.mutable_training()->set_precision(v1::FP32);
  good.mutable_checkpoint()->set_every_steps(10);
  good.mutable_checkpoint()->set_keep_best(1);  // of the steps that the program evaluates
  EXPECT_THAT(ValidateJobSpec(good), ::testing::IsEmpty());

  EXPECT_THAT(ExternalFaultAfter([](v1::JobSpec& spec) {
                spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
                spec.mutable_sync()->set_every(4);
              }),
              HasSubstr("sync.mode: local_sgd is not possible with model.external: the program "
                        "sends gradients to ps; use bsp, ssp or asp"));
  EXPECT_THAT(
      ExternalFaultAfter([](v1::JobSpec& spec) { spec.mutable_sync()->set_mode(v1::ALLREDUCE); }),
      HasSubstr("sync.mode: allreduce is not possible"));
  EXPECT_THAT(ExternalFaultAfter(
                  [](v1::JobSpec& spec) { spec.mutable_training()->set_precision(v1::BF16); }),
              HasSubstr("training.precision: only fp32 with model.external: the program chooses"));
  EXPECT_THAT(ExternalFaultAfter(
                  [](v1::JobSpec& spec) { spec.mutable_resources()->set_tensor_parallel(2); }),
              HasSubstr("resources.tensor_parallel: not with model.external: the program divides"));
  EXPECT_THAT(ExternalFaultAfter(
                  [](v1::JobSpec& spec) { spec.mutable_training()->set_micro_batch_size(2); }),
              HasSubstr("training.micro_batch_size: not with model.external"));
  EXPECT_THAT(ExternalFaultAfter([](v1::JobSpec& spec) {
                spec.mutable_resources()->mutable_workers()->set_logical(4);
              }),
              HasSubstr("resources.workers.logical: not with model.external: the program decides "
                        "how it sums over its samples"));
  EXPECT_THAT(
      ExternalFaultAfter([](v1::JobSpec& spec) { spec.mutable_training()->set_recompute(true); }),
      HasSubstr("training.recompute: not with model.external"));
  EXPECT_THAT(ExternalFaultAfter(
                  [](v1::JobSpec& spec) { spec.mutable_training()->set_evaluate_every_steps(5); }),
              HasSubstr("training.evaluate_every_steps: not with model.external"));
  EXPECT_THAT(ExternalFaultAfter(
                  [](v1::JobSpec& spec) { spec.set_on_non_finite(v1::NON_FINITE_ROLLBACK); }),
              HasSubstr("on_non_finite: rollback is not possible with model.external"));
  EXPECT_THAT(
      ExternalFaultAfter([](v1::JobSpec& spec) {
        spec.mutable_training()->mutable_optimizer()->mutable_lamb()->set_learning_rate(1);
        spec.mutable_resources()->set_ps(2);
        spec.mutable_resources()->set_ps_replication(2);
      }),
      HasSubstr("resources.ps_replication: 2 is not possible with model.external and lamb"));
  EXPECT_THAT(ExternalFaultAfter([](v1::JobSpec& spec) {
                spec.mutable_data()->mutable_linear()->set_samples(1000);
              }),
              HasSubstr("data.external: goes only with model.external"));
  EXPECT_THAT(ExternalFaultAfter([](v1::JobSpec& spec) { spec.mutable_data()->set_batch_size(0); }),
              HasSubstr("data.batch_size: must be between 1"));
}

TEST(JobValidationTest, ChecksTheProgram) {
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_program()->add_command("train"); }),
              HasSubstr("program: only with model.external"));
  EXPECT_THAT(
      ExternalFaultAfter([](v1::JobSpec& spec) { spec.mutable_program()->clear_command(); }),
      HasSubstr("program.command: required"));
  EXPECT_THAT(ExternalFaultAfter([](v1::JobSpec& spec) {
                for (int i = 0; i < 256; ++i) spec.mutable_program()->add_command("x");
              }),
              HasSubstr("program.command: at most 256 (has 257)"));
  for (const char* name : {"", "1A", "A-B", "A=B", "\xc3\xa4"}) {
    EXPECT_THAT(ExternalFaultAfter([&](v1::JobSpec& spec) {
                  (*spec.mutable_program()->mutable_environment())[name] = "x";
                }),
                HasSubstr("program.environment: a name must be letters, digits and '_'"));
  }
  EXPECT_THAT(
      ExternalFaultAfter([](v1::JobSpec& spec) { spec.mutable_program()->set_processes(65); }),
      HasSubstr("program.processes: must be between 0 and 64 (is 65)"));
  v1::JobSpec spec = ExternalSpec();
  FillDefaults(spec);
  EXPECT_EQ(spec.program().processes(), 1);
}

TEST(JobValidationTest, ChecksSchedules) {
  auto schedule = [](v1::JobSpec& spec) { return spec.mutable_training()->mutable_schedule(); };
  EXPECT_EQ(FaultAfter([&](v1::JobSpec& spec) { schedule(spec)->set_warmup_steps(100); }),
            "training.schedule.warmup_steps: must be less than training.steps = 100 (is 100)");
  EXPECT_THAT(
      FaultAfter([&](v1::JobSpec& spec) { schedule(spec)->mutable_step()->set_factor(0.5); }),
      HasSubstr("schedule.step.every_steps: must be at least 1 (is 0)"));
  EXPECT_THAT(FaultAfter([&](v1::JobSpec& spec) {
                schedule(spec)->mutable_cosine()->set_final_ratio(1.5);
              }),
              HasSubstr("schedule.cosine.final_ratio: must be between 0 and 1 (is 1.5)"));
}

TEST(JobValidationTest, ChecksResourcesCheckpointsAndLimits) {
  EXPECT_EQ(FaultAfter([](v1::JobSpec& spec) {
              spec.mutable_resources()->mutable_workers()->set_min(4);
              spec.mutable_resources()->mutable_workers()->set_max(2);
            }),
            "resources.workers.max: must be at least min = 4 (is 2)");
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_resources()->set_ps(-1); }),
              HasSubstr("resources.ps: must be between"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_resources()->mutable_workers()->set_max(100'000);
              }),
              HasSubstr("resources.workers.max: must be between 0 and 1024 (is 100000)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.set_priority(1001); }),
              HasSubstr("priority: must be between -1000 and 1000 (is 1001)"));
  EXPECT_EQ(FaultAfter([](v1::JobSpec& spec) { spec.set_chunk_bytes(1030); }),
            "chunk_bytes: must be a multiple of 64 (is 1030); try 1024");
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.set_chunk_bytes(100); }),
              HasSubstr("chunk_bytes: must be between 1024 and 67108864 (is 100)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_checkpoint()->set_keep_last(-1); }),
              HasSubstr("checkpoint.keep_last: must be at least 0 (is -1)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_checkpoint()->set_every_steps(100);
                spec.mutable_checkpoint()->set_keep_every_steps(250);
              }),
              HasSubstr("checkpoint.keep_every_steps: must be a multiple of "
                        "checkpoint.every_steps = 100 (is 250)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_training()->set_evaluate_every_steps(40);
                spec.mutable_checkpoint()->set_every_steps(100);
                spec.mutable_checkpoint()->set_keep_best(1);
              }),
              HasSubstr("checkpoint.every_steps = 100 must be a multiple of "
                        "training.evaluate_every_steps = 40"));
  v1::JobSpec kept = GoodSpec();
  kept.mutable_training()->set_evaluate_every_steps(50);
  kept.mutable_checkpoint()->set_every_steps(100);
  kept.mutable_checkpoint()->set_keep_every_steps(1000);
  kept.mutable_checkpoint()->set_keep_best(2);
  EXPECT_THAT(ValidateJobSpec(kept), ::testing::IsEmpty());
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_restart()->set_max_restarts(-1); }),
              HasSubstr("restart.max_restarts: must be between 0 and 1000 (is -1)"));
  EXPECT_EQ(FaultAfter([](v1::JobSpec& spec) {
              spec.mutable_restart()->mutable_backoff()->set_seconds(7200);
            }),
            "restart.backoff: must be between 0 and 1h (is 2h)");
  EXPECT_EQ(FaultAfter([](v1::JobSpec& spec) { spec.mutable_active_deadline(); }),
            "active_deadline: must be between 1s and 24000h (is 0)");
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) { spec.mutable_start_timeout()->set_nanos(5); }),
              HasSubstr("start_timeout: must be between 1s and 24000h (is 5ns)"));
  for (const std::pair<int64_t, int32_t>& time : {std::pair<int64_t, int32_t>(60, 1'000'000'000),
                                                  {60, -1'000'000'000},
                                                  {60, std::numeric_limits<int32_t>::min()},
                                                  {60, -5},
                                                  {-1, 1'500'000'000},
                                                  {-1, 5}}) {
    EXPECT_EQ(FaultAfter([&](v1::JobSpec& spec) {
                spec.mutable_start_timeout()->set_seconds(time.first);
                spec.mutable_start_timeout()->set_nanos(time.second);
              }),
              absl::StrCat(
                  "start_timeout: is not a valid Duration: nanos must be less than 1,000,000,000 "
                  "with the sign of seconds (has ",
                  time.first, " seconds and ", time.second, " nanos)"));
  }
  EXPECT_THAT(
      FaultAfter([](v1::JobSpec& spec) { spec.mutable_ttl_after_finished()->set_seconds(-3600); }),
      HasSubstr("ttl_after_finished: must be between 0 and 24000h (is -1h)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.set_on_non_finite(static_cast<v1::OnNonFinite>(7));
              }),
              HasSubstr("on_non_finite: must be fail, rollback or ignore (is number 7)"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_checkpoint()->set_resume_from("No Such Job!");
              }),
              HasSubstr("checkpoint.resume_from: must be a job id"));
  EXPECT_THAT(FaultAfter([](v1::JobSpec& spec) {
                spec.mutable_sync()->set_mode(static_cast<v1::SyncMode>(99));
              }),
              HasSubstr("sync.mode: unknown mode 99"));
}

TEST(JobValidationTest, ResumesFromJobsStepsAndDirectories) {
  for (const char* from :
       {"char-gpt-7", "char-gpt-7@1000", "jobs/char-gpt-7", "jobs/char-gpt-7/checkpoints/1000",
        "/var/checkpoints/step-00001000", "./step-00001000", "checkpoints/step-00001000"}) {
    v1::JobSpec spec = GoodSpec();
    spec.mutable_checkpoint()->set_resume_from(from);
    EXPECT_THAT(ValidateJobSpec(spec), ::testing::IsEmpty()) << from;
  }
}

TEST(JobValidationTest, FillsEveryDocumentedDefault) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_learning_rate(1);
  spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_beta1(0);

  FillDefaults(spec);

  const v1::Adam& adam = spec.training().optimizer().adam();
  EXPECT_EQ(adam.beta1(), 0);  // the spec set it
  EXPECT_EQ(adam.beta2(), 0.999);
  EXPECT_EQ(adam.epsilon(), 1e-8);
  EXPECT_TRUE(spec.training().schedule().has_constant());
  EXPECT_EQ(spec.training().precision(), v1::FP32);
  EXPECT_FALSE(spec.training().has_loss_scale());
  EXPECT_TRUE(spec.training().deterministic());
  EXPECT_EQ(spec.sync().mode(), v1::BSP);
  EXPECT_EQ(spec.resources().workers().min(), 1);
  EXPECT_EQ(spec.resources().workers().max(), 1);
  EXPECT_EQ(spec.resources().ps(), 1);
  EXPECT_EQ(spec.resources().ps_replication(), 1);
  EXPECT_EQ(spec.resources().tensor_parallel(), 1);
  EXPECT_EQ(spec.checkpoint().keep_last(), 3);
  EXPECT_EQ(spec.checkpoint().every().seconds(), 300);
  EXPECT_EQ(spec.restart().max_restarts(), 10);
  EXPECT_EQ(spec.restart().backoff().seconds(), 1);
  EXPECT_EQ(spec.on_non_finite(), v1::NON_FINITE_FAIL);
  EXPECT_EQ(spec.chunk_bytes(), 4 << 20);
  EXPECT_THAT(ValidateJobSpec(spec), ::testing::IsEmpty());
}

TEST(JobValidationTest, FillsTheDefaultsOfItsModeCodecAndOptimizer) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_sync()->set_mode(v1::SSP);
  spec.mutable_sync()->mutable_compression()->set_kind(v1::COMPRESSION_TOPK);
  spec.mutable_training()->add_parameter_groups()->add_match("a");
  FillDefaults(spec);
  EXPECT_EQ(spec.sync().staleness(), 1);
  EXPECT_EQ(spec.sync().values(), v1::VALUES_FP32);
  EXPECT_EQ(spec.sync().compression().ratio(), 0.01);
  EXPECT_EQ(spec.training().parameter_groups(0).learning_rate_factor(), 1);

  spec = GoodSpec();
  spec.mutable_sync()->mutable_compression()->set_kind(v1::COMPRESSION_POWERSGD);
  spec.mutable_training()->mutable_optimizer()->mutable_lamb()->set_learning_rate(1);
  FillDefaults(spec);
  EXPECT_EQ(spec.sync().staleness(), 0);
  EXPECT_EQ(spec.sync().compression().rank(), 4);
  EXPECT_EQ(spec.training().optimizer().lamb().beta2(), 0.999);
  EXPECT_EQ(spec.training().optimizer().lamb().epsilon(), 1e-6);

  spec = GoodSpec();
  spec.mutable_training()->mutable_optimizer()->mutable_lars()->set_learning_rate(1);
  FillDefaults(spec);
  EXPECT_EQ(spec.sync().compression().kind(), v1::COMPRESSION_NONE);
  EXPECT_EQ(spec.training().optimizer().lars().trust(), 0.001);
  EXPECT_EQ(spec.training().optimizer().lars().epsilon(), 1e-8);
}

TEST(JobValidationTest, WarnsOfAJobThatCanLoseMoreThanTheDefaultAllows) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_training()->set_steps(1000);
  spec.mutable_checkpoint()->set_every_steps(0);
  EXPECT_THAT(WarningsOf(spec), ::testing::IsEmpty());
  spec.mutable_checkpoint()->set_every_steps(900);
  EXPECT_THAT(WarningsOf(spec), ::testing::IsEmpty()) << "the default writes in between";

  spec.mutable_checkpoint()->mutable_every();
  EXPECT_THAT(WarningsOf(spec), ::testing::ElementsAre(HasSubstr("up to 900 of its 1000 steps")));
  spec.mutable_checkpoint()->set_every_steps(100);
  EXPECT_THAT(WarningsOf(spec), ::testing::IsEmpty());
  spec.mutable_checkpoint()->set_every_steps(0);
  EXPECT_THAT(WarningsOf(spec), ::testing::ElementsAre(HasSubstr("up to all its steps")));
  spec.mutable_checkpoint()->mutable_every()->set_seconds(3600);
  EXPECT_THAT(WarningsOf(spec), ::testing::ElementsAre(HasSubstr("up to 1h of training")));
}

TEST(JobValidationTest, WarnsOfANumberOfWorkersThatIsNoFasterThanASmallerOne) {
  const auto warnings = [](int min, int max, int logical) {
    v1::JobSpec spec = GoodSpec();
    v1::WorkerCount& workers = *spec.mutable_resources()->mutable_workers();
    workers.set_min(min);
    workers.set_max(max);
    workers.set_logical(logical);
    return WarningsOf(spec);
  };
  for (const int most : {1, 2, 4, 8})
    EXPECT_THAT(warnings(1, most, 8), ::testing::IsEmpty()) << most;
  EXPECT_THAT(warnings(1, 7, 0), ::testing::IsEmpty());
  EXPECT_THAT(
      warnings(1, 7, 8),
      ::testing::ElementsAre("resources.workers.max: 7 workers are no faster than 4 with 8 "
                             "logical workers; useful numbers are 1, 2, 4, 8; set max to 4"));
  EXPECT_THAT(warnings(3, 0, 8),
              ::testing::ElementsAre(
                  "resources.workers.max: 3 workers are no faster than 2 with 8 "
                  "logical workers; useful numbers are 1, 2, 4, 8; set min and max to 2"));

  v1::JobSpec spec = GoodSpec();
  spec.mutable_resources()->mutable_workers()->set_min(3);
  spec.mutable_resources()->mutable_workers()->set_logical(4);
  spec.mutable_checkpoint()->mutable_every();
  EXPECT_THAT(WarningsOf(spec),
              ::testing::ElementsAre(HasSubstr("workers.max"), HasSubstr("checkpoint.every")));
}

TEST(JobValidationTest, HalfPrecisionGetsALossScale) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_training()->set_precision(v1::FP16);
  spec.mutable_training()->set_deterministic(false);

  FillDefaults(spec);

  EXPECT_EQ(spec.training().loss_scale().initial(), 65536);
  EXPECT_EQ(spec.training().loss_scale().growth_steps(), 2000);
  EXPECT_FALSE(spec.training().deterministic());
  EXPECT_THAT(ValidateJobSpec(spec), ::testing::IsEmpty());
}

TEST(JobValidationTest, DefaultsDoNotReplaceValuesThatTheSpecSets) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_checkpoint()->set_keep_last(0);
  spec.mutable_checkpoint()->mutable_every();
  spec.mutable_restart()->set_max_restarts(0);
  spec.mutable_restart()->mutable_backoff();
  spec.set_on_non_finite(v1::NON_FINITE_IGNORE);
  spec.mutable_resources()->mutable_workers()->set_min(2);
  spec.mutable_training()->mutable_schedule()->mutable_poly();
  spec.mutable_training()->mutable_optimizer()->mutable_rmsprop();

  FillDefaults(spec);

  EXPECT_EQ(spec.checkpoint().keep_last(), 0);
  EXPECT_EQ(spec.checkpoint().every().seconds(), 0);
  EXPECT_EQ(spec.restart().max_restarts(), 0);
  EXPECT_EQ(spec.restart().backoff().seconds(), 0);
  EXPECT_EQ(spec.on_non_finite(), v1::NON_FINITE_IGNORE);
  EXPECT_EQ(spec.resources().workers().max(), 2);
  EXPECT_EQ(spec.training().schedule().poly().power(), 1);
  EXPECT_EQ(spec.training().optimizer().rmsprop().alpha(), 0.99);
  EXPECT_EQ(spec.training().optimizer().rmsprop().epsilon(), 1e-8);
}

}  // namespace
}  // namespace muster::job_validation_test
