#include "lib/job/job_file.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "lib/status/field_fault.h"

namespace muster::job_file_test {
namespace {

using google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kCharGpt[] = R"(name: char-gpt
model: {zoo: {name: gpt, args: {layers: 4, heads: 4, channels: 128, context: 64}}}
data:
  text: {path: /usr/share/common-licenses, holdout: 0.1}
  batch_size: 16
  seed: 7
training:
  steps: 2000
  optimizer: {adamw: {learning_rate: 3e-3, beta1: 0.9, beta2: 0.95, weight_decay: 0.1}}
  schedule: {warmup_steps: 100, cosine: {final_ratio: 0.1}}
  evaluate_every_steps: 400
  seed: 1
sync: {mode: bsp}
resources: {workers: {min: 1, max: 2}, ps: 2}
checkpoint: {every_steps: 1000, keep_last: 3, resume_from: "", mode: direct}
)";

// Returns the message of the faults of `text` with `overrides`. Fails the test if there are none.
std::string FaultsIn(const std::string& text, const JobOverrides& overrides = {}) {
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(text, "job.yaml", overrides);
  EXPECT_FALSE(spec.ok()) << "expected faults";
  return std::string(spec.status().message());
}

// Returns the char-gpt job with `line` replaced.
std::string With(const std::string& line, const std::string& replacement) {
  const std::string text = absl::StrReplaceAll(kCharGpt, {{line, replacement}});
  EXPECT_NE(text, kCharGpt) << line;
  return text;
}

TEST(JobFileTest, ReadsTheExampleJob) {
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(kCharGpt, "job.yaml");

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "char-gpt");
  EXPECT_EQ(spec->model().zoo().args().fields().at("channels").number_value(), 128);
  EXPECT_EQ(spec->data().text().path(), "/usr/share/common-licenses");
  EXPECT_EQ(spec->data().seed(), 7);
  EXPECT_EQ(spec->training().steps(), 2000);
  EXPECT_EQ(spec->training().optimizer().adamw().learning_rate(), 3e-3);
  EXPECT_EQ(spec->training().schedule().cosine().final_ratio(), 0.1);
  EXPECT_EQ(spec->sync().mode(), v1::BSP);
  EXPECT_EQ(spec->resources().workers().max(), 2);
  EXPECT_TRUE(spec->checkpoint().has_keep_last());
  EXPECT_EQ(spec->checkpoint().mode(), v1::CHECKPOINT_MODE_DIRECT);
  EXPECT_THAT(FaultsIn(With("mode: direct", "mode: nfs")),
              AllOf(HasSubstr("checkpoint.mode"), HasSubstr("direct"), HasSubstr("stream")));
}

TEST(JobFileTest, YamlReadsBackAsTheSameSpec) {
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(kCharGpt, "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  spec->mutable_data()->mutable_text()->set_path("true");  // text that looks like something else
  spec->mutable_checkpoint()->set_keep_last(0);            // present, though zero
  spec->mutable_training()->mutable_optimizer()->mutable_adamw()->set_learning_rate(0.1 + 0.2);
  spec->mutable_training()->mutable_schedule()->mutable_constant();
  auto& args = *spec->mutable_model()->mutable_zoo()->mutable_args()->mutable_fields();
  args["hidden"].set_string_value("256,128");
  args["tied"].set_bool_value(true);
  args["sizes"].mutable_list_value()->add_values()->set_number_value(0.5);
  args["empty"].set_string_value("");

  absl::StatusOr<v1::JobSpec> again = ParseJobFile(ToYaml(*spec), "again.yaml");

  ASSERT_TRUE(again.ok()) << again.status() << "\n" << ToYaml(*spec);
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << ToYaml(*spec);
}

TEST(JobFileTest, ReadsAndWritesTheFilesOfTheInputs) {
  const std::string npy = With("  text: {path: /usr/share/common-licenses, holdout: 0.1}",
                               "  npy:\n    inputs: {tokens: a.npy, 7: \"b c.npy\"}");
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(npy, "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().npy().inputs_size(), 2);
  EXPECT_EQ(spec->data().npy().inputs().at("tokens"), "a.npy");
  EXPECT_EQ(spec->data().npy().inputs().at("7"), "b c.npy");
  absl::StatusOr<v1::JobSpec> again = ParseJobFile(ToYaml(*spec), "again.yaml");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << ToYaml(*spec);
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << ToYaml(*spec);

  auto faults = [&](const std::string& inputs) {
    return FaultsIn(absl::StrReplaceAll(npy, {{"{tokens: a.npy, 7: \"b c.npy\"}", inputs}}));
  };
  EXPECT_THAT(faults("{a: x, a: y}"), HasSubstr("job.yaml:5: data.npy.inputs.a: set twice"));
  EXPECT_THAT(faults("[a, b]"), HasSubstr("data.npy.inputs: expects a map (is a list)"));
  EXPECT_THAT(faults("{a: 5}"), HasSubstr("data.npy.inputs.a: expects text (is 5)"));
  EXPECT_THAT(faults("{a: }"), HasSubstr("data.npy.inputs.a: has no value"));
}

// A fuzzer found this: -0 was written as 0, and then left out.
TEST(JobFileTest, ReadsAndWritesTheSignOfZero) {
  const auto spec = ParseJobFile("data: {linear: {slope: 3, intercept: -0}}", "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(ToYaml(*spec), HasSubstr("intercept: -0\n"));
  const auto again = ParseJobFile(ToYaml(*spec), "again.yaml");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << ToYaml(*spec);
  EXPECT_EQ(ToYaml(*again), ToYaml(*spec));
}

TEST(JobFileTest, ReadsAndWritesTimesWithTheirUnits) {
  const std::string text = absl::StrCat(kCharGpt,
                                        "restart: {max_restarts: 3, backoff: 500ms}\n"
                                        "active_deadline: 1h30m\n"
                                        "start_timeout: \"90s\"\n"
                                        "ttl_after_finished: 0\n"
                                        "on_non_finite: rollback\n");
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(text, "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->restart().backoff().nanos(), 500'000'000);
  EXPECT_EQ(spec->active_deadline().seconds(), 5400);
  EXPECT_EQ(spec->start_timeout().seconds(), 90);
  EXPECT_TRUE(spec->has_ttl_after_finished());
  EXPECT_EQ(spec->on_non_finite(), v1::NON_FINITE_ROLLBACK);
  absl::StatusOr<v1::JobSpec> again = ParseJobFile(ToYaml(*spec), "again.yaml");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << ToYaml(*spec);
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << ToYaml(*spec);

  for (const char* time : {"90", "soon", "inf", "2 hours", "[1h]", "{seconds: 5}", ""}) {
    EXPECT_THAT(FaultsIn(absl::StrCat(kCharGpt, "start_timeout: ", time, "\n")),
                HasSubstr("job.yaml:16: start_timeout: "))
        << time;
  }
}

TEST(JobFileTest, ReadsPrecisionLossScaleAndClipping) {
  absl::StatusOr<v1::JobSpec> spec =
      ParseJobFile(With("  seed: 1",
                        "  precision: fp16\n  loss_scale: {initial: 1024, growth_steps: 100}\n"
                        "  clip: {global_norm: 0.5}\n  micro_batch_size: 4\n  recompute: true\n"
                        "  deterministic: false"),
                   "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::TrainingSpec& training = spec->training();
  EXPECT_EQ(training.precision(), v1::FP16);
  EXPECT_EQ(training.loss_scale().initial(), 1024);
  EXPECT_EQ(training.loss_scale().growth_steps(), 100);
  EXPECT_EQ(training.clip().global_norm(), 0.5);
  EXPECT_EQ(training.micro_batch_size(), 4);
  EXPECT_TRUE(training.recompute());
  EXPECT_TRUE(training.has_deterministic());
  EXPECT_FALSE(training.deterministic());
  absl::StatusOr<v1::JobSpec> again = ParseJobFile(ToYaml(*spec), "again.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << ToYaml(*spec);
  EXPECT_THAT(
      FaultsIn(With("  seed: 1", "  precision: fp8")),
      HasSubstr("training.precision: \"fp8\": unknown value; known: bf16, fp16, fp32, tf32"));
}

TEST(JobFileTest, ReadsAndWritesSyncModes) {
  auto sync = [](const std::string& yaml) {
    absl::StatusOr<v1::JobSpec> spec = ParseJobFile(With("{mode: bsp}", yaml), "job.yaml");
    EXPECT_TRUE(spec.ok()) << spec.status();
    absl::StatusOr<v1::JobSpec> again = ParseJobFile(ToYaml(*spec), "again.yaml");
    EXPECT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << ToYaml(*spec);
    return spec->sync();
  };
  const v1::SyncSpec ssp = sync("{mode: ssp, staleness: 3, staleness_aware: true, values: bf16}");
  EXPECT_EQ(ssp.mode(), v1::SSP);
  EXPECT_EQ(ssp.staleness(), 3);
  EXPECT_TRUE(ssp.staleness_aware());
  EXPECT_EQ(ssp.values(), v1::VALUES_BF16);
  EXPECT_EQ(sync("{mode: local_sgd, every: 16}").every(), 16);
  EXPECT_EQ(sync("{backup_workers: 1}").backup_workers(), 1);
  EXPECT_EQ(sync("{compression: {kind: topk, ratio: 0.05}}").compression().ratio(), 0.05);
  EXPECT_EQ(sync("{compression: {kind: powersgd, rank: 8}}").compression().rank(), 8);
}

TEST(JobFileTest, FaultOfAJobInTheApisFormNamesTheCommandThatPrintsAJobFile) {
  EXPECT_EQ(
      FaultsIn("name: jobs/a-1\nspec:\n  name: a\nstate: RUNNING\n"),
      "job.yaml:2: spec: this is a job as the API prints it, not a job file; muster get JOB -o "
      "spec prints a job file");
  EXPECT_THAT(FaultsIn(With("{mode: bsp}", "{mode: BSP, values: VALUES_FP32}")),
              AllOf(HasSubstr("sync.mode: \"BSP\": is the API's name of 'bsp' (muster get JOB -o "
                              "spec prints a job file)"),
                    HasSubstr("sync.values: \"VALUES_FP32\": is the API's name of 'fp32'")));
}

TEST(JobFileTest, TakesAKindAloneForItsMessage) {
  const std::map<std::string, v1::CompressionKind> kinds = {
      {"none", v1::COMPRESSION_NONE},        {"fp16", v1::COMPRESSION_FP16},
      {"bf16", v1::COMPRESSION_BF16},        {"int8", v1::COMPRESSION_INT8},
      {"topk", v1::COMPRESSION_TOPK},        {"onebit", v1::COMPRESSION_ONEBIT},
      {"powersgd", v1::COMPRESSION_POWERSGD}};
  for (const auto& [name, kind] : kinds) {
    absl::StatusOr<v1::JobSpec> spec =
        ParseJobFile(With("{mode: bsp}", absl::StrCat("{compression: ", name, "}")), "job.yaml");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->sync().compression().kind(), kind) << name;
    EXPECT_THAT(ToYaml(*spec), HasSubstr(absl::StrCat("compression: ", name, "\n")));
  }
  EXPECT_THAT(FaultsIn(With("{mode: bsp}", "{compression: compression_int8}")),
              HasSubstr("job.yaml:13: sync.compression: \"compression_int8\": unknown value"));
  EXPECT_THAT(FaultsIn(With("{mode: bsp}", "{compression: [int8]}")),
              HasSubstr("sync.compression: expects a map of kind, ratio, rank (is a list)"));
  EXPECT_THAT(FaultsIn(With("{mode: bsp}", "{compression: {kind: topk, ratio: 0}}")),
              HasSubstr("sync.compression.ratio: must be greater than 0 (is 0)"));
}

TEST(JobFileTest, ReadsAndWritesParameterGroups) {
  const std::string text = With("  seed: 1",
                                "  parameter_groups:\n"
                                "  - match: [\"tokens.*\", positions.weight]\n"
                                "    frozen: true\n"
                                "  - {match: [\"*.bias\"], learning_rate_factor: 2,\n"
                                "     weight_decay: false}");
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(text, "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(spec->training().parameter_groups_size(), 2);
  const v1::ParameterGroup& first = spec->training().parameter_groups(0);
  EXPECT_THAT(first.match(), ::testing::ElementsAre("tokens.*", "positions.weight"));
  EXPECT_TRUE(first.frozen());
  const v1::ParameterGroup& second = spec->training().parameter_groups(1);
  EXPECT_EQ(second.learning_rate_factor(), 2);
  EXPECT_TRUE(second.has_weight_decay());
  EXPECT_FALSE(second.weight_decay());
  absl::StatusOr<v1::JobSpec> again = ParseJobFile(ToYaml(*spec), "again.yaml");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << ToYaml(*spec);

  const absl::Status late = FaultsToStatus({{"training.parameter_groups[1].match[0]", "no such"},
                                            {"training.parameter_groups[7].match", "none"}});
  EXPECT_EQ(LocateFaults(late, text, "job.yaml").message(),
            "job.yaml:15: training.parameter_groups[1].match[0]: no such\n"
            "job.yaml:12: training.parameter_groups[7].match: none");
}

TEST(JobFileTest, RefusesParameterGroupsThatAreNotAList) {
  auto faults = [](const std::string& groups) {
    return FaultsIn(With("  seed: 1", absl::StrCat("  parameter_groups: ", groups)));
  };
  EXPECT_THAT(faults("{match: [a]}"),
              HasSubstr("parameter_groups: expects a list (is a map); write it in [brackets]"));
  EXPECT_THAT(faults("[a]"), HasSubstr("parameter_groups[0]: expects a map of match, "));
  EXPECT_THAT(faults("[{match: a}]"),
              HasSubstr("parameter_groups[0].match: expects a list (is \"a\")"));
  EXPECT_THAT(faults("[{match: [a, 5]}]"),
              HasSubstr("parameter_groups[0].match[1]: expects text (is 5)"));
  EXPECT_THAT(faults("[{match: [[a]]}]"),
              HasSubstr("parameter_groups[0].match[0]: expects text (is a list)"));
  EXPECT_THAT(faults("[{match: [a]}, {math: [b]}]"),
              HasSubstr("parameter_groups[1].math: unknown field; did you mean 'match'?"));
}

TEST(JobFileTest, NamesLineAndPathAndSuggestsTheNearestField) {
  EXPECT_EQ(FaultsIn(With("  steps: 2000", "  step: 2000")),
            "job.yaml:8: training.step: unknown field; did you mean 'steps'?");
  EXPECT_THAT(FaultsIn(With("sync: {mode: bsp}", "sync: {mode: bps}")),
              HasSubstr("job.yaml:13: sync.mode: \"bps\": unknown value; did you mean 'bsp'?"));
  EXPECT_THAT(FaultsIn(With("{adamw: {", "{admaw: {")),
              HasSubstr("training.optimizer.admaw: unknown field; did you mean 'adamw'?"));
  EXPECT_THAT(FaultsIn(absl::StrCat(kCharGpt, "frobnicate: 1\n")),
              HasSubstr("frobnicate: unknown field; known: name, model, data"));
}

TEST(JobFileTest, ListsEveryFaultAtOnceAlsoAsFieldFaults) {
  const std::string text = absl::StrReplaceAll(kCharGpt, {{"batch_size: 16", "batch_size: many"},
                                                          {"steps: 2000", "steps: 2e3"},
                                                          {"ps: 2", "ps: 2.5"}});

  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(text, "job.yaml");

  EXPECT_EQ(spec.status().message(),
            "job.yaml:5: data.batch_size: expects a whole number (is \"many\")\n"
            "job.yaml:8: training.steps: expects a whole number in plain digits; write 2000 "
            "instead of 2e3\n"
            "job.yaml:14: resources.ps: expects a whole number (is \"2.5\")");
  EXPECT_THAT(FaultsOf(spec.status()),
              ::testing::ElementsAre(::testing::Field(&FieldFault::field, "data.batch_size"),
                                     ::testing::Field(&FieldFault::field, "training.steps"),
                                     ::testing::Field(&FieldFault::field, "resources.ps")));
}

TEST(JobFileTest, RefusesWrongTypes) {
  EXPECT_THAT(FaultsIn(With("name: char-gpt", "name: 123")),
              HasSubstr("job.yaml:1: name: expects text (is 123); write it in quotes: \"123\""));
  EXPECT_THAT(FaultsIn(With("batch_size: 16", "batch_size: \"16\"")),
              HasSubstr("data.batch_size: expects a whole number"));
  EXPECT_THAT(FaultsIn(With("holdout: 0.1", "holdout: a tenth")),
              HasSubstr("data.text.holdout: expects a number (is \"a tenth\")"));
  EXPECT_THAT(FaultsIn(With("sync: {mode: bsp}", "sync: bsp")),
              HasSubstr("sync: expects a map of mode, staleness, "));
  EXPECT_THAT(FaultsIn(With("batch_size: 16", "batch_size: [16]")),
              HasSubstr("data.batch_size: expects a single value (is a list)"));
  EXPECT_THAT(FaultsIn(With("batch_size: 16", "batch_size:")),
              HasSubstr("data.batch_size: has no value"));
  EXPECT_THAT(FaultsIn(With("beta1: 0.9", "beta1: 0.9, nesterov: yes")),
              HasSubstr("adamw.nesterov: unknown field"));
  EXPECT_THAT(FaultsIn(With("adamw: {learning_rate: 3e-3, beta1: 0.9, beta2: 0.95, ",
                            "sgd: {learning_rate: 3e-3, nesterov: yes, ")),
              HasSubstr("sgd.nesterov: expects true or false (is \"yes\")"));
}

TEST(JobFileTest, RefusesNumbersThatDoNotFitOrAreNotFinite) {
  EXPECT_THAT(FaultsIn(With("ps: 2", "ps: 3000000000")),
              HasSubstr("resources.ps: must be between -2147483648 and 2147483647"));
  EXPECT_THAT(FaultsIn(With("seed: 7", "seed: -7")), HasSubstr("data.seed: must not be negative"));
  for (const char* number : {".nan", "nan", ".inf", "-.inf", "1e999"}) {
    EXPECT_THAT(FaultsIn(With("holdout: 0.1", absl::StrCat("holdout: ", number))),
                HasSubstr("data.text.holdout: must be a finite number"))
        << number;
  }
  EXPECT_THAT(FaultsIn(With("layers: 4", "layers: .nan")),
              HasSubstr("model.zoo.args.layers: must be a finite number"));
}

TEST(JobFileTest, RefusesAnExplicitZeroWhereTheApiWouldTakeItForUnset) {
  EXPECT_EQ(
      FaultsIn(With("ps: 2", "ps: 0")),
      "job.yaml:14: resources.ps: must be at least 1 (is 0); leave it out for the default, or "
      "train without ps by sync: {mode: allreduce}");
  EXPECT_TRUE(
      ParseJobFile(absl::StrReplaceAll(kCharGpt, {{"ps: 2", "ps: 0"}, {"bsp", "allreduce"}}),
                   "job.yaml")
          .ok());
  EXPECT_THAT(FaultsIn(With("min: 1", "min: 0")),
              HasSubstr("resources.workers.min: must be at least 1"));
}

TEST(JobFileTest, RefusesDuplicatesAndTwoMembersOfAOneof) {
  EXPECT_THAT(FaultsIn(absl::StrCat(kCharGpt, "name: other\n")),
              HasSubstr("job.yaml:16: name: set twice; first at job.yaml:1"));
  EXPECT_THAT(FaultsIn(With("  steps: 2000", "  steps: 2000\n  epochs: 3")),
              HasSubstr("training.epochs: only one of 'steps', 'epochs' may be set"));
  EXPECT_THAT(FaultsIn(With("layers: 4", "layers: 4, layers: 5")),
              HasSubstr("model.zoo.args.layers: set twice"));
}

TEST(JobFileTest, NamesTheLineOfSyntaxErrors) {
  EXPECT_THAT(FaultsIn("name: a\nmodel: {zoo: [}\n"), HasSubstr("job.yaml:2: not YAML: "));
  EXPECT_EQ(FaultsIn("name: a\ndata:\n\tseed: 1\n"),
            "job.yaml:3: a tab in the indentation; YAML wants spaces");
  EXPECT_THAT(FaultsIn(""), HasSubstr("job.yaml:1: the file is empty"));
  EXPECT_THAT(FaultsIn("# only a comment\n"), HasSubstr("the file is empty"));
  EXPECT_THAT(FaultsIn("just text"), HasSubstr("a job file is a map"));
  EXPECT_THAT(FaultsIn("name: a\n---\nname: b\n"), HasSubstr("one job per file"));
  EXPECT_THAT(FaultsIn("name: *nowhere\n"), HasSubstr("job.yaml:1: not YAML"));
  EXPECT_EQ(FaultsIn("name: a\n\n\"\xff\": 1\n"),
            "job.yaml:3: not UTF-8: save the file in that encoding");
  EXPECT_THAT(FaultsIn("[a, b]: c\n"), HasSubstr("a key must be a name"));
}

// Strings of the API must be UTF-8.
TEST(JobFileTest, RefusesNulAndEscapesThatAreNotUtf8) {
  EXPECT_EQ(FaultsIn(std::string("name: a\n{x: 1,\0_y: 2}\n", 21)),
            "job.yaml:2: not UTF-8: save the file in that encoding");
  for (const char* escape : {R"(\0)", R"(\N)", R"(\_)"}) {
    for (const char* line : {"\"a$0b\": 1", "b: \"a$0b\""}) {
      const std::string text = absl::StrCat("name: a\n", absl::Substitute(line, escape), "\n");
      EXPECT_THAT(FaultsIn(text), HasSubstr("(at job.yaml:2): write the character itself")) << text;
    }
  }
  EXPECT_TRUE(ParseJobFile(R"(name: "a\xe4\u2028\L\x07")", "job.yaml").ok());
}

// yaml-cpp sees an empty document before such a comma, and never gets past the comma.
TEST(JobFileTest, RefusesAFileThatBeginsWithAComma) {
  EXPECT_THAT(FaultsIn("# a comment\n, name: a\n"), HasSubstr("job.yaml:2: one job per file"));
  EXPECT_THAT(FaultsIn(","), HasSubstr("job.yaml:1: one job per file"));
}

TEST(JobFileTest, BoundsHostileFiles) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [");
    for (int j = 0; j < 10; ++j) absl::StrAppend(&bomb, "*a", i - 1, j == 9 ? "]\n" : ", ");
  }
  EXPECT_THAT(FaultsIn(bomb), HasSubstr("more than 10000 values"));
  EXPECT_THAT(FaultsIn("a: &a {b: *a}\n"), ::testing::AnyOf(HasSubstr("nest"), HasSubstr("YAML")));
  EXPECT_THAT(FaultsIn(absl::StrCat("a: ", std::string(100'000, '['))),
              ::testing::AnyOf(HasSubstr("not YAML"), HasSubstr("nest")));
  EXPECT_THAT(FaultsIn(absl::StrCat("a: ", std::string(100, '['), std::string(100, ']'))),
              HasSubstr("nest more than 32 deep"));
  EXPECT_THAT(FaultsIn(std::string((1 << 20) + 1, ' ')), HasSubstr("at most 1048576 bytes"));
  std::string unknown;
  for (int i = 0; i < 4000; ++i) absl::StrAppend(&unknown, "key", i, ": 1\n");
  EXPECT_THAT(FaultsIn(unknown), HasSubstr("... and 3950 more"));
}

TEST(JobFileTest, SurvivesEveryTruncationOfAGoodFile) {
  const std::string text = kCharGpt;
  for (size_t length = 0; length < text.size(); ++length) {
    ParseJobFile(text.substr(0, length), "job.yaml").IgnoreError();
  }
}

constexpr char kImagesAndExamples[] = R"(
name: mixed
data:
  mixture:
    parts:
      - weight: 2
        data:
          images: {path: photos}
          image:
            train: [{random_resized_crop: {size: 224, scale_min: 0}}, {random_flip: {}}]
            mean: [0.485, 0.456, 1e-3]
            std: [0.229, 1, 0.12345679]
      - {weight: 1, data: {csv: {path: a.csv, inputs: {x: {columns: ["1", 3-15], number: {log: true}}}}}}
  batch_size: 32
  last_batch: continue
  shuffle: {block: {lanes: 4}}
)";

TEST(JobFileTest, ReadsAndWritesListsOfNumbersAndNestedSources) {
  const absl::StatusOr<v1::JobSpec> spec = ParseJobFile(kImagesAndExamples, "job.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const v1::DataSpec& part = spec->data().mixture().parts(0).data();
  EXPECT_THAT(part.image().mean(), ::testing::ElementsAre(0.485f, 0.456f, 1e-3f));
  EXPECT_TRUE(part.image().train(0).random_resized_crop().has_scale_min());

  const std::string text = ToYaml(*spec);
  EXPECT_THAT(text, HasSubstr("mean: [0.485, 0.456, 0.001]"));
  const absl::StatusOr<v1::JobSpec> again = ParseJobFile(text, "again.yaml");
  ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again)) << text;
}

TEST(JobFileTest, NamesTheItemThatIsNoNumber) {
  EXPECT_THAT(FaultsIn("data: {image: {mean: [0.5, x, [1], 1e39]}}"),
              AllOf(HasSubstr("data.image.mean[1]: expects a number (is \"x\")"),
                    HasSubstr("data.image.mean[2]: expects a number (is a list)"),
                    HasSubstr("data.image.mean[3]: must fit into a float (is 1e39)")));
  EXPECT_THAT(FaultsIn("data: {shuffle: {block: {lanes: 0}}}"),
              HasSubstr("block.lanes: must be at least 1 (is 0); leave it out"));
}

TEST(JobFileTest, OverridesReplaceAndAddFields) {
  absl::StatusOr<v1::JobSpec> spec =
      ParseJobFile(kCharGpt, "job.yaml",
                   {{"training.steps", "50"},
                    {"data.text.path", "/tmp/my text.txt"},
                    {"priority", "5"},
                    {"model.zoo.args.layers", "2"},
                    {"checkpoint.resume_from", ""},
                    {"training.optimizer", "{sgd: {learning_rate: 0.1}}"}});

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->training().steps(), 50);
  EXPECT_EQ(spec->data().text().path(), "/tmp/my text.txt");
  EXPECT_EQ(spec->data().text().holdout(), 0.1);
  EXPECT_EQ(spec->priority(), 5);
  EXPECT_EQ(spec->model().zoo().args().fields().at("layers").number_value(), 2);
  EXPECT_EQ(spec->training().optimizer().sgd().learning_rate(), 0.1);
}

TEST(JobFileTest, AnOverrideDisplacesTheOtherMemberOfItsOneof) {
  absl::StatusOr<v1::JobSpec> spec =
      ParseJobFile(kCharGpt, "job.yaml",
                   {{"training.epochs", "2"}, {"training.optimizer.adam.learning_rate", "0.01"}});

  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->training().has_steps());
  EXPECT_EQ(spec->training().epochs(), 2);
  EXPECT_EQ(spec->training().optimizer().adam().learning_rate(), 0.01);
}

TEST(JobFileTest, FaultsOfOverridesNameTheOverride) {
  EXPECT_EQ(FaultsIn(kCharGpt, {{"training.step", "5"}}),
            "--set training.step: training.step: unknown field; did you mean 'steps'?");
  EXPECT_THAT(FaultsIn(kCharGpt, {{"training.steps", "lots"}}),
              HasSubstr("--set training.steps: training.steps: expects a whole number"));
  EXPECT_THAT(FaultsIn(kCharGpt, {{"a..b", "1"}}), HasSubstr("--set a..b: not a field path"));
  EXPECT_THAT(FaultsIn(kCharGpt, {{"name", "[unclosed"}}), HasSubstr("--set name: not a YAML"));
}

TEST(JobFileTest, LocatesFaultsThatWereFoundAfterParsing) {
  const absl::Status status = FaultsToStatus({{"data.batch_size", "too small"},
                                              {"data.idx.labels", "required"},
                                              {"priority", "too high"}});

  const absl::Status located = LocateFaults(status, kCharGpt, "job.yaml", {{"priority", "9999"}});

  EXPECT_EQ(located.message(),
            "job.yaml:5: data.batch_size: too small\n"
            "job.yaml:3: data.idx.labels: required\n"
            "--set priority: priority: too high");
  EXPECT_EQ(FaultsOf(located), FaultsOf(status));
}

}  // namespace
}  // namespace muster::job_file_test
