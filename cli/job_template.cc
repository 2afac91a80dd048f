#include "cli/job_template.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "lib/data/input_use.h"
#include "lib/graph/onnx/onnx_import.h"
#include "lib/job/spec_writer.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "lib/suggestion/suggestion.h"

namespace muster::cli {
namespace {

struct Template {
  absl::string_view model;
  absl::string_view args;       // of the builder; those that users change
  absl::string_view data;       // lines below `data:`
  absl::string_view length;     // steps or epochs
  absl::string_view optimizer;  // its rate fits the model
  absl::string_view further;    // lines below `training:`
};

constexpr absl::string_view kText =
    "  text: {path: my_texts/, holdout: 0.1}  # a file or a folder; every 10th block is held out\n";
constexpr absl::string_view kDigits =
    "  idx:                          # MNIST's format, plain or gzip\n"
    "    images: train-images-idx3-ubyte.gz\n"
    "    labels: train-labels-idx1-ubyte.gz\n"
    "    holdout: 0.1                # the last tenth is held out for evaluation\n";
constexpr absl::string_view kImages =
    "  synthetic: {samples: 1024}    # random: for speed, not for learning. Your own images:\n"
    "  # npy: {inputs: {input: images.npy, target: classes.npy}, holdout: 0.1}\n";
constexpr absl::string_view kPairs =
    "  synthetic: {samples: 4096}    # random: for speed, not for learning. Your own sentences:\n"
    "  # npy: {inputs: {source: source.npy, target_input: input.npy, target: target.npy}}\n";
constexpr absl::string_view kAdam = "adamw: {learning_rate: 1e-3, weight_decay: 0.01}";
constexpr absl::string_view kSgd =
    "sgd: {learning_rate: 0.05, momentum: 0.9, nesterov: true, weight_decay: 1e-4}";
constexpr absl::string_view kBf16 = "  precision: bf16               # fp32, tf32, bf16 or fp16\n";

constexpr std::array<Template, 14> kTemplates = {{
    {"linear", "", "  linear: {slope: 3, intercept: -0.5, noise: 0.01, samples: 512}\n",
     "steps: 200", "sgd: {learning_rate: 0.3}", ""},
    {"mlp", "{hidden: \"256,128\", classes: 10}", kDigits, "epochs: 10", kAdam, ""},
    {"lenet", "{classes: 10}", kDigits, "epochs: 10", kAdam, ""},
    {"vgg16", "{classes: 1000}", kImages, "steps: 1000", kSgd, kBf16},
    {"resnet50", "{classes: 1000}", kImages, "steps: 1000", kSgd, kBf16},
    {"resnet101", "{classes: 1000}", kImages, "steps: 1000", kSgd, kBf16},
    {"inception_v3", "{classes: 1000}", kImages, "steps: 1000", kSgd, kBf16},
    {"lstm_lm", "{layers: 2, channels: 650, context: 35}", kText, "steps: 2000", kAdam,
     "  clip: {global_norm: 0.25}     # recurrent networks need it\n"},
    {"gnmt", "{layers: 4, channels: 1024}", kPairs, "steps: 2000", kAdam, kBf16},
    {"transformer", "{size: base}", kPairs, "steps: 2000", kAdam, kBf16},
    {"bert", "{size: base, context: 128}",
     "  synthetic: {samples: 4096}    # random: for speed, not for learning. Your own texts:\n"
     "  # npy: {inputs: {tokens: t.npy, segments: s.npy, masked_tokens: m.npy,\n"
     "  #                next_sentence: n.npy}}\n",
     "steps: 2000", "lamb: {learning_rate: 1e-3, weight_decay: 0.01}", kBf16},
    {"gpt", "{layers: 4, heads: 4, channels: 128, context: 64}", kText, "steps: 2000",
     "adamw: {learning_rate: 3e-3, beta2: 0.95, weight_decay: 0.1}", ""},
    {"gpt2", "{size: 124m, context: 1024}", kText, "steps: 2000",
     "adamw: {learning_rate: 6e-4, beta2: 0.95, weight_decay: 0.1}", kBf16},
    {"ncf", "{users: 138493, items: 26744}",
     "  synthetic: {samples: 65536}   # random: for speed, not for learning. Your own clicks:\n"
     "  # npy: {inputs: {user: user.npy, item: item.npy, target: clicked.npy}}\n",
     "steps: 2000", kAdam, ""},
}};

// The lines of a job file that differ from model to model.
struct Sections {
  std::string name;
  std::string model;
  std::string data;
  absl::string_view length;
  absl::string_view optimizer;
  absl::string_view further;
};

std::string JobText(const Sections& sections, const std::string& file) {
  return absl::StrCat(
      "# muster explain FIELD, or docs/job_spec.md, explains each field.\n"
      "#\n"
      "#   muster validate ",
      file,
      "        prints every fault with its line\n"
      "#   muster run ",
      file,
      "             starts a cluster for it on this machine\n"
      "#   muster submit ",
      file,
      "          sends it to the coordinator\n"
      "\n"
      "name: ",
      sections.name, "  # jobs are called ", sections.name, "-1, ", sections.name,
      "-2, ...\n"
      "# labels: {team: my-team}       # muster list --selector finds it by these\n"
      "\n"
      "model:",
      sections.model,
      "\n"
      "data:\n",
      sections.data,
      "  batch_size: 32                # samples of one step, shared by all workers\n"
      "  seed: 1                       # decides the order of samples\n"
      "\n"
      "training:\n"
      "  ",
      sections.length,
      "\n"
      "  optimizer: {",
      sections.optimizer,
      "}\n"
      "  schedule: {warmup_steps: 50, cosine: {final_ratio: 0.1}}\n"
      "  evaluate_every_steps: 500     # if there is held-out data\n",
      sections.further,
      "  seed: 1                       # decides the initial values\n"
      "\n"
      "# logical: 4 shares of each batch, so the bits are the same on any number of workers\n"
      "resources: {workers: {min: 1, max: 2, logical: 4}, ps: 1}\n"
      "\n"
      "checkpoint:\n"
      "  every_steps: 500              # the most steps that a lost ps costs\n"
      "  keep_last: 3\n"
      "  # resume_from: JOB            # another job's last checkpoint, or JOB@STEP\n");
}

// "    path: model.onnx             # the file", with the comments of a section in one column.
std::string Line(const std::string& text, const std::string& comment) {
  constexpr size_t kColumn = 32;
  const size_t spaces = text.size() < kColumn ? kColumn - text.size() : 2;
  return absl::StrCat(text, std::string(spaces, ' '), "# ", comment, "\n");
}

// Derives the name of a job from the name of a file: "My_Model.v2.onnx" gives "my-model-v2".
std::string JobNameOf(const std::string& path) {
  std::string name = std::filesystem::path(path).stem().string();
  absl::AsciiStrToLower(&name);
  for (char& c : name) {
    if (!absl::ascii_isalnum(c)) c = '-';
  }
  name = name.substr(std::min(name.find_first_not_of('-'), name.size()), limits::kNameBytesMax);
  name.erase(name.find_last_not_of('-') + 1);
  return name.empty() ? "onnx" : name;
}

struct Loss {
  std::string output;
  std::string name;     // the value of model.onnx.loss
  std::string comment;  // names the alternatives
};

// Chooses the output to train on. The first output that is one number is itself the loss. Otherwise
// the first f32 output with a row for each sample feeds a loss.
absl::StatusOr<Loss> ChooseLoss(const OnnxSignature& signature, const std::string& path) {
  std::vector<std::string> outputs;
  for (const OnnxOutput& output : signature.outputs) {
    const bool is_number =
        output.shape.empty() || (output.shape.size() == 1 && output.shape[0] == 1);
    if (output.dtype == v1::DTYPE_F32 && is_number) {
      return Loss{output.name, "output", "the file computes it; it must be a mean over samples"};
    }
    outputs.push_back(absl::StrCat(output.name, " ", output.ToString()));
  }
  for (const OnnxOutput& output : signature.outputs) {
    if (output.dtype != v1::DTYPE_F32 || output.shape[0] != -1) continue;
    const bool has_classes = output.shape.size() > 1 && output.shape.back() > 1;
    if (has_classes) {
      return Loss{output.name, "softmax_cross_entropy",
                  "or sigmoid_cross_entropy, mean_squared_error: both for f32 labels"};
    }
    return Loss{output.name, "mean_squared_error", "or sigmoid_cross_entropy, of labels 0 to 1"};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": no output fits a loss, which reads f32[] or f32[B, ...]; the file has ",
                   outputs.empty() ? "none" : absl::StrJoin(outputs, ", ")));
}

// Returns the input that has a usual name of labels and that the loss can take, or else "target",
// which the importer adds. Returns "" if the file computes its loss.
std::string ChooseLabels(const OnnxSignature& signature, const Loss& loss) {
  if (loss.name == "output") return "";
  const auto logits = std::ranges::find(signature.outputs, loss.output, &OnnxOutput::name);
  const bool of_classes = loss.name == "softmax_cross_entropy";
  std::vector<int64_t> shape = logits->shape;
  if (of_classes) shape.pop_back();
  for (const v1::GraphInput& input : signature.inputs) {
    constexpr absl::string_view kNames[] = {"target", "targets", "label", "labels", "y"};
    if (std::ranges::find(kNames, input.name()) == std::end(kNames)) continue;
    const bool fits = input.dtype() == (of_classes ? v1::DTYPE_I32 : v1::DTYPE_F32) &&
                      std::ranges::equal(input.shape(), shape);
    if (fits) return input.name();
  }
  return "target";
}

std::string TypeText(const v1::GraphInput& input) {
  return OnnxOutput{.dtype = input.dtype(), .shape = {input.shape().begin(), input.shape().end()}}
      .ToString();
}

// Returns the lines below `data:`: random samples, and comments with the files that can replace
// them.
std::string OnnxData(const v1::Graph& graph) {
  std::string text =
      "  synthetic: {samples: 1024}    # random: for speed, not for learning. Your own data:\n"
      "  # npy:                        # a file for each input, with a row for each of B samples\n"
      "  #   inputs:\n";
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const v1::GraphInput& input = graph.inputs(i);
    const std::string values = ToText(uses[i]);
    const std::string file = absl::StrReplaceAll(input.name(), {{"/", "_"}, {":", "_"}}) + ".npy";
    absl::StrAppend(&text,
                    Line(absl::StrCat("  #     ", WriteText(input.name()), ": ", WriteText(file)),
                         absl::StrCat(TypeText(input), values.empty() ? "" : ", ", values)));
  }
  absl::StrAppend(&text, Line("  #   holdout: 0.1", "the last tenth is held out for evaluation"));
  return text;
}

}  // namespace

std::vector<std::string> TemplateModels() {
  std::vector<std::string> models;
  for (const Template& one : kTemplates) models.emplace_back(one.model);
  return models;
}

absl::StatusOr<std::string> JobTemplate(const std::string& model, const std::string& file) {
  const auto found = std::ranges::find(kTemplates, model, &Template::model);
  if (found == kTemplates.end()) {
    const std::vector<std::string> models = TemplateModels();
    const std::string nearest = NearestName(model, models);
    return absl::InvalidArgumentError(
        absl::StrCat("--model ", model, ": ",
                     nearest.empty() ? absl::StrCat("the models are ", absl::StrJoin(models, ", "))
                                     : absl::StrCat("did you mean '", nearest, "'?")));
  }
  const Template& chosen = *found;
  const std::string name = absl::StrReplaceAll(model, {{"_", "-"}});
  const std::string args = chosen.args.empty() ? "" : absl::StrCat(", args: ", chosen.args);
  return JobText({.name = name,
                  .model = absl::StrCat(" {zoo: {name: ", model, args, "}}\n"),
                  .data = std::string(chosen.data),
                  .length = chosen.length,
                  .optimizer = chosen.optimizer,
                  .further = chosen.further},
                 file);
}

absl::StatusOr<std::string> OnnxJobTemplate(const std::string& path, const std::string& file) {
  ASSIGN_OR_RETURN(const OnnxSignature signature, ReadOnnxSignature(path));
  ASSIGN_OR_RETURN(const Loss loss, ChooseLoss(signature, path));
  const std::string labels = ChooseLabels(signature, loss);
  v1::OnnxModel model;
  model.set_path(path);
  model.set_logits(loss.output);
  model.set_loss(loss.name);
  model.set_labels(labels);
  ASSIGN_OR_RETURN(const ImportedModel imported, ImportOnnx(model));

  const auto chosen = std::ranges::find(signature.outputs, loss.output, &OnnxOutput::name);
  std::string text =
      absl::StrCat("\n  onnx:\n    path: ", WriteText(path), "\n",
                   Line(absl::StrCat("    logits: ", WriteText(loss.output)),
                        absl::StrCat(chosen->ToString(), ", an output of the file")));
  for (const OnnxOutput& output : signature.outputs) {
    if (output.name == loss.output) continue;
    absl::StrAppend(&text, Line(absl::StrCat("    # logits: ", WriteText(output.name)),
                                absl::StrCat(output.ToString(), ", another one")));
  }
  absl::StrAppend(&text, Line(absl::StrCat("    loss: ", loss.name), loss.comment));
  if (!labels.empty()) {
    const bool is_own = std::ranges::count(signature.inputs, labels, &v1::GraphInput::name) > 0;
    absl::StrAppend(&text, Line(absl::StrCat("    labels: ", WriteText(labels)),
                                is_own ? "an input of the file" : "the input that the loss adds"));
  }
  return JobText({.name = JobNameOf(path),
                  .model = text,
                  .data = OnnxData(imported.graph),
                  .length = "steps: 1000",
                  .optimizer = kAdam,
                  .further = ""},
                 file);
}

}  // namespace muster::cli
