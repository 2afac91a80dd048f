#include "cli/job_template.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "lib/suggestion/suggestion.h"

namespace muster::cli {
namespace {

struct Template {
  absl::string_view model;
  absl::string_view args;       // of the builder, with what is worth changing
  absl::string_view data;       // lines below `data:`
  absl::string_view length;     // steps or epochs
  absl::string_view optimizer;  // with a rate that fits the model
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
constexpr absl::string_view kBf16 =
    "  precision: bf16               # fp32, tf32, bf16 or fp16\n"
    "  micro_batch_size: 8           # a device computes at most so many samples at once\n";

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
     "  clip: {global_norm: 0.25}     # recurrent nets need it\n"},
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

}  // namespace

std::vector<std::string> TemplateModels() {
  std::vector<std::string> models;
  for (const Template& one : kTemplates) models.emplace_back(one.model);
  return models;
}

absl::StatusOr<std::string> JobTemplate(const std::string& model) {
  const auto found = std::ranges::find(kTemplates, model, &Template::model);
  if (found == kTemplates.end()) {
    const std::vector<std::string> models = TemplateModels();
    const std::string nearest = NearestName(model, models);
    return absl::InvalidArgumentError(
        absl::StrCat("--model ", model, ": ",
                     nearest.empty() ? absl::StrCat("there are ", absl::StrJoin(models, ", "))
                                     : absl::StrCat("did you mean '", nearest, "'?")));
  }
  const Template& chosen = *found;
  const std::string name = absl::StrReplaceAll(model, {{"_", "-"}});
  const std::string args = chosen.args.empty() ? "" : absl::StrCat(", args: ", chosen.args);
  return absl::StrCat(
      "# What each field means: muster explain FIELD, or docs/job_spec.md.\n"
      "#\n"
      "#   muster validate FILE        every fault, with its line\n"
      "#   muster run FILE             on a cluster of its own, on this machine\n"
      "#   muster submit FILE          to the coordinator\n"
      "\n"
      "name: ",
      name, "  # jobs are called ", name, "-1, ", name,
      "-2, ...\n"
      "# labels: {team: my-team}       # what muster list --selector finds it by\n"
      "\n"
      "model: {zoo: {name: ",
      model, args,
      "}}\n"
      "\n"
      "data:\n",
      chosen.data,
      "  batch_size: 32                # samples of one step, shared by all workers\n"
      "  seed: 1                       # of the order of samples\n"
      "\n"
      "training:\n"
      "  ",
      chosen.length,
      "\n"
      "  optimizer: {",
      chosen.optimizer,
      "}\n"
      "  schedule: {warmup_steps: 50, cosine: {final_ratio: 0.1}}\n"
      "  evaluate_every_steps: 500     # where there is held-out data\n",
      chosen.further,
      "  seed: 1                       # of initial values\n"
      "\n"
      "resources: {workers: {min: 1, max: 2}, ps: 1}\n"
      "\n"
      "checkpoint:\n"
      "  every_steps: 500              # what is lost with a parameter server, at most\n"
      "  keep_last: 3\n"
      "  # resume_from: JOB            # another job's last checkpoint, or JOB@STEP\n");
}

}  // namespace muster::cli
