#include "cli/commands/model_choice.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/local/job_check.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/job/job_file.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

// Parses a value as YAML does: true or false, a number, or else a string.
google::protobuf::Value ArgumentValue(const std::string& text) {
  google::protobuf::Value value;
  double number;
  if (text == "true" || text == "false") {
    value.set_bool_value(text == "true");
  } else if (absl::SimpleAtod(text, &number)) {
    value.set_number_value(number);
  } else {
    value.set_string_value(text);
  }
  return value;
}

}  // namespace

void ModelChoice::AddOptions(Command command) {
  command.AddOption("JOB_FILE", job_file, "Job file whose model to use");
  command.AddOption("--zoo", zoo, "Model by name, see docs/job_spec.md");
  command.AddOption("--arg", args, "NAME=VALUE for the zoo's model").OneValueEach();
  command.AddOption("--onnx", *onnx.mutable_path(), "A model from an ONNX file");
  command.AddOption("--logits", *onnx.mutable_logits(), "ONNX: the output that the loss reads");
  command.AddOption("--labels", *onnx.mutable_labels(), "ONNX: the input with the labels");
  command.AddOption("--loss", *onnx.mutable_loss(), "ONNX: as model.onnx.loss of a job file");
  const auto add_patterns = [&](const char* name, const char* help,
                                google::protobuf::RepeatedPtrField<std::string>* patterns) {
    command
        .AddOption(
            name,
            [patterns](const std::vector<std::string>& given) {
              patterns->Assign(given.begin(), given.end());
            },
            help)
        .OneValueEach();
  };
  add_patterns("--train", "ONNX: tensors that are parameters (* and ?)", onnx.mutable_train());
  add_patterns("--freeze", "ONNX: tensors that are constants", onnx.mutable_freeze());
  add_patterns("--tie", "ONNX: tensors that all uses share", onnx.mutable_tie());
  add_patterns("--untie", "ONNX: tensors with a copy for each use", onnx.mutable_untie());
  command.AddOption("--precision", precision, "fp32, tf32, bf16 or fp16")
      .OneOf({"fp32", "tf32", "bf16", "fp16"});
  command.AddOption("--device", device, "cpu or cuda:N");
  command.AddOption("--batch", batch, "Samples that the device computes at once")
      .Within(1, 1 << 20);
  command.AddOption("--threads", threads, "Threads of a CPU device; default: every core")
      .Within(0, 1024);
}

absl::StatusOr<v1::ModelSpec> ModelChoice::Spec() const {
  if (job_file.empty() + zoo.empty() + onnx.path().empty() != 2) {
    return absl::InvalidArgumentError(
        "name one model: a job file, --zoo NAME or --onnx FILE (see --help)");
  }
  v1::ModelSpec spec;
  if (!job_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadJobFile(job_file));
    ASSIGN_OR_RETURN(const v1::JobSpec job, ParseJobFile(text, job_file, {}));
    return job.model();
  }
  if (!onnx.path().empty()) {
    *spec.mutable_onnx() = onnx;
    return spec;
  }
  spec.mutable_zoo()->set_name(zoo);
  for (const std::string& argument : args) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    if (parts.first.empty() || parts.first == argument) {
      return absl::InvalidArgumentError(
          absl::StrCat("--arg ", argument, ": expects NAME=VALUE, for example --arg layers=2"));
    }
    (*spec.mutable_zoo()->mutable_args()->mutable_fields())[parts.first] =
        ArgumentValue(parts.second);
  }
  return spec;
}

v1::Precision ModelChoice::PrecisionValue() const {
  if (precision == "tf32") return v1::TF32;
  if (precision == "bf16") return v1::BF16;
  return precision == "fp16" ? v1::FP16 : v1::FP32;
}

int ModelChoice::Threads() const { return threads > 0 ? threads : std::max(1, UsableCpus()); }

}  // namespace muster::cli
