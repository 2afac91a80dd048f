#include "lib/graph/onnx/initializer_roles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/graph/glob.h"
#include "lib/graph/onnx/initializer_uses.h"
#include "lib/status/status.h"

namespace muster {
namespace {

using onnx::TensorProto;
using Patterns = google::protobuf::RepeatedPtrField<std::string>;

constexpr float kHuge = 1e30f;  // masks hide with the lowest float as well as with -infinity

enum class NameTells { kParameter, kBuffer, kNothing };

// Returns what a name says, judged by the words of its last component. "blocks.0.layer_scale" is a
// parameter. "attn_mask" and names numbered by an exporter ("onnx::Mul_12", "val_3") are buffers.
NameTells TellOf(absl::string_view name) {
  static const auto& parameters = *new absl::flat_hash_set<absl::string_view>{
      "weight", "weights",   "bias",        "gamma",     "beta",    "gain",      "scale",
      "embed",  "embedding", "embeddings",  "token",     "tokens",  "query",     "queries",
      "table",  "kernel",    "param",       "parameter", "slope",   "original0", "original1",
      "biases", "alpha",     "temperature", "prompt",    "latents", "prototypes"};
  static const auto& buffers = *new absl::flat_hash_set<absl::string_view>{
      "mean",     "std",     "var",   "variance", "mask",  "tril",    "triu",       "causal",
      "freq",     "freqs",   "ids",   "pe",       "index", "indices", "window",     "buffer",
      "anchor",   "anchors", "grid",  "cos",      "sin",   "basis",   "filterbank", "mel",
      "constant", "tensor",  "val",   "coords",   "zeros", "ones",    "full",       "filt",
      "fb",       "blur",    "sobel", "laplacian"};
  // Hugging Face's BART has this buffer; by its name and use it looks like a bias.
  if (absl::EndsWith(name, "final_logits_bias")) return NameTells::kBuffer;
  if (absl::StrContains(name, "::") || absl::StartsWith(name, "val_") ||
      absl::StartsWith(name, "/")) {
    return NameTells::kBuffer;
  }
  std::vector<absl::string_view> components = absl::StrSplit(name, absl::ByAnyChar("./"));
  // Removes numbers at the end: parameters in a list, and copies of a merged parameter, have such
  // names.
  const auto is_digit = [](char c) { return absl::ascii_isdigit(c); };
  while (components.size() > 1 && std::ranges::all_of(components.back(), is_digit)) {
    components.pop_back();
  }
  const std::string last = absl::AsciiStrToLower(components.back());
  std::vector<absl::string_view> words = absl::StrSplit(last, '_', absl::SkipEmpty());
  std::erase_if(words, [&](absl::string_view word) { return std::ranges::all_of(word, is_digit); });
  // The last word is the noun; the others qualify it.
  std::ranges::reverse(words);
  for (absl::string_view word : words) {
    if (parameters.contains(word)) return NameTells::kParameter;
    if (buffers.contains(word)) return NameTells::kBuffer;
  }
  return NameTells::kNothing;
}

const std::string* FindMatch(const Patterns& patterns, const std::string& name) {
  const auto found = std::ranges::find_if(
      patterns, [&](const std::string& pattern) { return MatchesGlob(pattern, name); });
  return found == patterns.end() ? nullptr : &*found;
}

// PyTorch's newer exporter gives a computed tensor the name of its operator, with a number from the
// second one on: "mul", "mul_1". Returns the operator: "mul" for "mul_44".
absl::string_view OperatorOf(absl::string_view name) {
  while (!name.empty() && absl::ascii_isdigit(name.back())) name.remove_suffix(1);
  while (!name.empty() && (name.back() == '_' || name.back() == '.')) name.remove_suffix(1);
  return name;
}

// Returns whether that exporter computed the tensor. Parameters of modules have dots in their
// names, and the model's own parameters have other names.
bool IsComputed(absl::string_view name) {
  static const auto& operators = *new absl::flat_hash_set<absl::string_view>{
      "add",  "arange",    "cat",  "clone",   "contiguous", "cos",     "div", "exp",       "expand",
      "full", "index",     "mul",  "neg",     "ones",       "permute", "pow", "reshape",   "select",
      "sin",  "slice",     "sqrt", "squeeze", "sub",        "t",       "to",  "transpose", "tril",
      "triu", "unsqueeze", "val",  "view",    "where",      "zeros"};
  return operators.contains(OperatorOf(name));
}

// Returns whether the exporter computed the tensor by arithmetic with other numbers, such as a
// weight times its norm.
bool IsComputedByArithmetic(absl::string_view name) {
  const absl::string_view op = OperatorOf(name);
  return op == "add" || op == "sub" || op == "mul" || op == "div" || op == "pow" || op == "sqrt" ||
         op == "exp";
}

bool IsWeight(UseKind kind) { return kind != UseKind::kStatistic && kind != UseKind::kElementwise; }

class Decider {
 public:
  Decider(const v1::OnnxModel& model, OnnxFile& file)
      : model_(model),
        file_(file),
        uses_(FindInitializerUses(*file.mutable_graph())),
        names_have_dots_(std::ranges::any_of(
            file.graph().initializer(),
            [](const TensorProto& tensor) { return absl::StrContains(tensor.name(), '.'); })) {}

  absl::StatusOr<InitializerDecision> Decide(const TensorProto& tensor) const {
    InitializerDecision decision{.name = tensor.name(),
                                 .shape = {tensor.dims().begin(), tensor.dims().end()}};
    const auto conclude = [&](InitializerRole role, std::string reason, bool doubtful = false) {
      decision.role = role;
      decision.reason = std::move(reason);
      decision.doubtful = doubtful;
      return decision;
    };
    const auto found = uses_.find(tensor.name());
    const auto find = [&](auto wanted) {
      return std::ranges::find_if(found->second,
                                  [&](const InitializerUse& use) { return wanted(use.kind); });
    };
    // Running statistics stay statistics even if a pattern freezes them.
    if (found != uses_.end()) {
      const auto statistic = find([](UseKind kind) { return kind == UseKind::kStatistic; });
      if (statistic != found->second.end()) {
        return conclude(InitializerRole::kStatistic, statistic->ToString());
      }
    }
    if (const std::string* pattern = FindMatch(model_.freeze(), tensor.name())) {
      return conclude(InitializerRole::kConstant, absl::StrCat("onnx.freeze: ", *pattern));
    }
    if (const std::string* pattern = FindMatch(model_.train(), tensor.name())) {
      return conclude(InitializerRole::kTrained, absl::StrCat("onnx.train: ", *pattern));
    }
    if (found == uses_.end()) {
      return conclude(InitializerRole::kConstant, "meets nothing of the data");
    }
    const std::vector<InitializerUse>& uses = found->second;
    const NameTells tells = TellOf(tensor.name());
    if (tensor.dims_size() == 0) {
      return conclude(
          InitializerRole::kConstant, "a scalar",
          /*doubtful=*/tells == NameTells::kParameter || OperatorOf(tensor.name()) == "exp");
    }
    ASSIGN_OR_RETURN(const std::vector<float> values, file_.Floats(tensor));
    if (!std::ranges::all_of(values, [](float value) { return std::abs(value) < kHuge; })) {
      return conclude(InitializerRole::kConstant, "holds infinities, as a mask does");
    }
    const bool computed = names_have_dots_ && IsComputed(tensor.name());
    if (const auto weight = find(IsWeight); weight != uses.end()) {
      return DecideWeight(decision, *weight, tells, computed, values);
    }
    const InitializerUse& use = uses.front();
    if (tells == NameTells::kParameter || (tells == NameTells::kBuffer && !computed)) {
      const bool parameter = tells == NameTells::kParameter;
      return conclude(
          parameter ? InitializerRole::kTrained : InitializerRole::kConstant,
          absl::StrCat(use.ToString(), ", called as a ", parameter ? "parameter is" : "buffer is"));
    }
    // A module's parameter, which has a dot in its name, may be a single number. Without a module,
    // a single number is a constant factor.
    if (values.size() == 1 && !absl::StrContains(tensor.name(), '.')) {
      return conclude(InitializerRole::kConstant, absl::StrCat(use.ToString(), ", a number"));
    }
    const bool trained = use.on_activations && !computed;
    return conclude(trained ? InitializerRole::kTrained : InitializerRole::kConstant,
                    absl::StrCat(use.ToString(), computed  ? ", computed by the exporter"
                                                 : trained ? ", behind the first weights"
                                                           : ", before the first weights"),
                    /*doubtful=*/true);
  }

 private:
  // An initialiser in the place of a weight is a weight, with four exceptions:
  // - a number that scales or shifts a norm's result;
  // - an added tensor of several dimensions that the exporter computed;
  // - the gains of 1 and biases of 0 that an exporter makes for the instance norm in a group norm;
  // - a tensor with a buffer's name.
  static InitializerDecision DecideWeight(InitializerDecision decision, const InitializerUse& use,
                                          NameTells tells, bool computed,
                                          const std::vector<float>& values) {
    decision.reason = use.ToString();
    decision.role = InitializerRole::kTrained;
    const bool plain = std::ranges::all_of(values, [&](float value) { return value == values[0]; });
    const std::string& op = use.node->op_type();
    const auto extents =
        std::ranges::count_if(decision.shape, [](int64_t size) { return size != 1; });
    // A single number after a norm scales its result. So does a tensor with "::" in its name, which
    // is not a gain: the older exporter keeps the names of gains.
    const bool is_scale = use.kind == UseKind::kNorm && (op == "Mul" || op == "Add") &&
                          (values.size() == 1 || absl::StrContains(decision.name, "::"));
    if (is_scale) {
      decision.role = InitializerRole::kConstant;
      absl::StrAppend(&decision.reason, ", a number");
    } else if (use.kind == UseKind::kBias && op == "Add" && computed && extents > 1) {
      decision.role = InitializerRole::kConstant;
      absl::StrAppend(&decision.reason, ", computed by the exporter");
      decision.doubtful = true;
    } else if (op == "InstanceNormalization" && computed && plain) {
      decision.role = InitializerRole::kConstant;
      absl::StrAppend(&decision.reason, ", computed by the exporter");
    } else if (tells == NameTells::kBuffer && !IsNumbered(decision.name)) {
      decision.role = InitializerRole::kConstant;
      absl::StrAppend(&decision.reason, ", called as a buffer is");
      decision.doubtful = !use.is_derived;
    } else if (computed && IsComputedByArithmetic(decision.name)) {
      absl::StrAppend(&decision.reason, ", computed by the exporter");
      decision.doubtful = true;
    } else if (use.is_derived && tells == NameTells::kNothing) {
      absl::StrAppend(&decision.reason, ", which is computed of it");
      decision.doubtful = true;
    }
    return decision;
  }

  static bool IsNumbered(absl::string_view name) {
    return absl::StrContains(name, "::") || absl::StartsWith(name, "val_") ||
           absl::StartsWith(name, "/");
  }

  const v1::OnnxModel& model_;
  const OnnxFile& file_;
  const InitializerUses uses_;
  const bool names_have_dots_;
};

absl::Status CheckPatterns(const Patterns& patterns, absl::string_view field,
                           const OnnxFile& file) {
  for (const std::string& pattern : patterns) {
    const auto& tensors = file.graph().initializer();
    if (std::ranges::none_of(tensors, [&](const TensorProto& tensor) {
          return IsFloating(tensor.data_type()) && MatchesGlob(pattern, tensor.name());
        })) {
      return WithReason(absl::InvalidArgumentError(
                            absl::StrCat("onnx.", field, ": no floating initialiser matches '",
                                         pattern, "': muster model describe lists them")),
                        "MODEL_INVALID");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<InitializerDecision>> DecideRoles(const v1::OnnxModel& model,
                                                             OnnxFile& file) {
  RETURN_IF_ERROR(CheckPatterns(model.train(), "train", file));
  RETURN_IF_ERROR(CheckPatterns(model.freeze(), "freeze", file));
  RETURN_IF_ERROR(CheckPatterns(model.tie(), "tie", file));
  RETURN_IF_ERROR(CheckPatterns(model.untie(), "untie", file));
  const Decider decider(model, file);
  std::vector<InitializerDecision> decisions;
  for (const TensorProto& tensor : file.graph().initializer()) {
    if (!IsFloating(tensor.data_type())) continue;
    ASSIGN_OR_RETURN(decisions.emplace_back(), decider.Decide(tensor));
  }
  return decisions;
}

}  // namespace muster
