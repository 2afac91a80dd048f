#include "lib/job/data_check.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

// One of round(1/holdout) blocks is held out. With a smaller share, no block would be.
constexpr double kHoldoutMin = 1e-6;
constexpr double kHoldoutMax = 0.5;

class DataCheck {
 public:
  DataCheck(const v1::JobSpec& spec, FieldChecks& faults) : spec_(spec), faults_(faults) {}

  void Run() {
    const v1::DataSpec& data = spec_.data();
    switch (data.source_case()) {
      case v1::DataSpec::kText:
        faults_.Path("data.text.path", data.text().path(), "a file, or a folder of files");
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
      case v1::DataSpec::kExternal:
        break;
      default:
        faults_.Add("data", "required: one of text, idx, linear, npy, synthetic, external");
        break;
    }
    if (data.has_external() != spec_.model().has_external()) {
      faults_.Add("data.external",
                  "goes only with model.external, whose program reads the samples");
    }
    BatchSize();
  }

 private:
  void Holdout(std::string field, double holdout) {
    if (holdout == 0) return;
    faults_.InRange(std::move(field), holdout, kHoldoutMin, kHoldoutMax,
                    "it is a share: 0.1 holds out a tenth, 0 nothing");
  }

  void Idx(const v1::IdxData& idx) {
    faults_.Path("data.idx.images", idx.images(), "an IDX file of images, plain or gzip");
    faults_.Path("data.idx.labels", idx.labels(), "an IDX file of labels, plain or gzip");
    Holdout("data.idx.holdout", idx.holdout());
    if (!idx.eval_images().empty()) {
      faults_.Path("data.idx.eval_images", idx.eval_images(), "");
      if (idx.holdout() != 0) {
        faults_.Add("data.idx.holdout",
                    "not together with eval_images: evaluation uses either a share of the training "
                    "samples or files of its own; remove one");
      }
    }
    if (!idx.eval_labels().empty()) faults_.Path("data.idx.eval_labels", idx.eval_labels(), "");
    if (idx.eval_images().empty() != idx.eval_labels().empty()) {
      const bool labels_missing = idx.eval_labels().empty();
      faults_.Add(
          labels_missing ? "data.idx.eval_labels" : "data.idx.eval_images",
          absl::StrCat("required together with ", labels_missing ? "eval_images" : "eval_labels"));
    }
  }

  void Linear(const v1::LinearData& linear) {
    faults_.Finite("data.linear.slope", linear.slope());
    faults_.Finite("data.linear.intercept", linear.intercept());
    faults_.NotNegative("data.linear.noise", linear.noise());
    MadeSamples("data.linear.samples", linear.samples(), limits::kLinearSamplesMax);
  }

  // Checks the number of samples of a source that generates its samples.
  void MadeSamples(const std::string& field, int64_t samples, int64_t max) {
    if (faults_.InRange<int64_t>(field, samples, 1, max) && spec_.data().batch_size() > samples) {
      faults_.Add("data.batch_size", absl::StrCat("must be at most ", field, " = ", samples,
                                                  " (is ", spec_.data().batch_size(),
                                                  "); make more samples or a smaller batch"));
    }
  }

  void Npy(const v1::NpyData& npy) {
    if (npy.inputs().empty()) {
      faults_.Add("data.npy.inputs", "required: a file per input of the model, input: images.npy");
    } else if (npy.inputs_size() > limits::kGraphInputsMax) {
      faults_.Add("data.npy.inputs", absl::StrCat("at most ", limits::kGraphInputsMax, " (has ",
                                                  npy.inputs_size(), ")"));
    } else {
      const std::map<std::string, std::string> sorted(npy.inputs().begin(), npy.inputs().end());
      for (const auto& [name, path] : sorted) {
        faults_.TensorName("data.npy.inputs", name);
        faults_.Path(absl::StrCat("data.npy.inputs.", name.substr(0, limits::kTensorNameBytesMax)),
                     path, "an .npy file");
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
    if (!faults_.InRange<int64_t>("data.batch_size", batch, 1, limits::kBatchSizeMax,
                                  "samples of one global batch, shared by all workers")) {
      return;
    }
    const v1::WorkerCount& workers = spec_.resources().workers();
    const int64_t most = std::max(workers.min(), workers.max());
    if (batch < most && most <= limits::kWorkersMax) {
      faults_.Add("data.batch_size",
                  absl::StrCat("must be at least resources.workers.",
                               workers.max() >= workers.min() ? "max" : "min", " = ", most, " (is ",
                               batch, "): every worker needs a sample of each batch"));
    }
  }

  const v1::JobSpec& spec_;
  FieldChecks& faults_;
};

}  // namespace

void CheckData(const v1::JobSpec& spec, FieldChecks& faults) { DataCheck(spec, faults).Run(); }

}  // namespace muster
