#include "lib/job/source_check.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/map.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

// One of round(1/holdout) blocks is held out. With a smaller share, no block would be.
constexpr double kHoldoutMin = 1e-6;
constexpr double kHoldoutMax = 0.5;
constexpr int kColumnsMax = 65536;                               // of one input
constexpr int64_t kIdMax = std::numeric_limits<int32_t>::max();  // ids are i32 in the model

class SourceCheck {
 public:
  SourceCheck(const v1::DataSpec& data, absl::string_view field, FieldChecks& faults)
      : data_(data), field_(field), faults_(faults) {}

  void Run() {
    switch (data_.source_case()) {
      case v1::DataSpec::kText:
        faults_.Path(At("text.path"), data_.text().path(), "a file, or a folder of files");
        Holdout(At("text.holdout"), data_.text().holdout());
        break;
      case v1::DataSpec::kIdx:
        return Idx(data_.idx());
      case v1::DataSpec::kLinear:
        return Linear(data_.linear());
      case v1::DataSpec::kNpy:
        return Npy(data_.npy());
      case v1::DataSpec::kSynthetic:
        MadeSamples(At("synthetic.samples"), data_.synthetic().samples(),
                    limits::kSyntheticSamplesMax);
        Holdout(At("synthetic.holdout"), data_.synthetic().holdout());
        break;
      case v1::DataSpec::kImages:
        return Images(data_.images());
      case v1::DataSpec::kTfrecord:
        return Tfrecord(data_.tfrecord());
      case v1::DataSpec::kTar:
        return Tar(data_.tar());
      case v1::DataSpec::kNpz:
        return Npz(data_.npz());
      case v1::DataSpec::kCsv:
        return Csv(data_.csv());
      case v1::DataSpec::kExternal:
      case v1::DataSpec::kMixture:
      case v1::DataSpec::SOURCE_NOT_SET:
        break;  // data_check.cc
    }
  }

 private:
  std::string At(absl::string_view name) const { return absl::StrCat(field_, ".", name); }

  void Holdout(std::string field, double holdout) {
    if (holdout == 0) return;
    faults_.InRange(std::move(field), holdout, kHoldoutMin, kHoldoutMax,
                    "it is a share: 0.1 holds out a tenth, 0 nothing");
  }

  // Checks the held-out samples: a share of the training samples, or files of their own.
  void Held(const std::string& source, double holdout, absl::string_view files_field,
            const std::string& files) {
    const std::string field = At(absl::StrCat(source, ".holdout"));
    Holdout(field, holdout);
    if (files.empty()) return;
    faults_.Path(At(absl::StrCat(source, ".", files_field)), files, "");
    if (holdout != 0) {
      faults_.Add(field, absl::StrCat("not together with ", files_field,
                                      ": evaluation uses either a share of the training "
                                      "samples or files of its own; remove one"));
    }
  }

  void Idx(const v1::IdxData& idx) {
    faults_.Path(At("idx.images"), idx.images(), "an IDX file of images, plain or gzip");
    faults_.Path(At("idx.labels"), idx.labels(), "an IDX file of labels, plain or gzip");
    Held("idx", idx.holdout(), "eval_images", idx.eval_images());
    if (!idx.eval_labels().empty()) faults_.Path(At("idx.eval_labels"), idx.eval_labels(), "");
    if (idx.eval_images().empty() != idx.eval_labels().empty()) {
      const bool labels_missing = idx.eval_labels().empty();
      faults_.Add(
          At(labels_missing ? "idx.eval_labels" : "idx.eval_images"),
          absl::StrCat("required together with ", labels_missing ? "eval_images" : "eval_labels"));
    }
  }

  void Linear(const v1::LinearData& linear) {
    faults_.Finite(At("linear.slope"), linear.slope());
    faults_.Finite(At("linear.intercept"), linear.intercept());
    faults_.NotNegative(At("linear.noise"), linear.noise());
    MadeSamples(At("linear.samples"), linear.samples(), limits::kLinearSamplesMax);
  }

  // Checks the number of samples of a source that generates its samples.
  void MadeSamples(const std::string& field, int64_t samples, int64_t max) {
    if (faults_.InRange<int64_t>(field, samples, 1, max) && data_.batch_size() > samples) {
      faults_.Add(At("batch_size"),
                  absl::StrCat("must be at most ", field, " = ", samples, " (is ",
                               data_.batch_size(), "); make more samples or a smaller batch"));
    }
  }

  // Checks a map by names of graph inputs, and calls `check` with each entry in the order of names.
  template <typename Value, typename Check>
  void Inputs(const std::string& field, const google::protobuf::Map<std::string, Value>& inputs,
              absl::string_view what, Check check) {
    if (inputs.empty()) {
      faults_.Add(field, absl::StrCat("required: ", what));
      return;
    }
    if (static_cast<int64_t>(inputs.size()) > limits::kGraphInputsMax) {
      faults_.Add(field,
                  absl::StrCat("at most ", limits::kGraphInputsMax, " (has ", inputs.size(), ")"));
      return;
    }
    const std::map<std::string, Value> sorted(inputs.begin(), inputs.end());
    for (const auto& [name, value] : sorted) {
      faults_.TensorName(field, name);
      check(absl::StrCat(field, ".", name.substr(0, limits::kTensorNameBytesMax)), value);
    }
  }

  // Checks a name of something in a file: a feature, an array, a member of a JSON object.
  void Name(const std::string& field, const std::string& name, absl::string_view what) {
    if (name.empty()) faults_.Add(field, absl::StrCat("required: ", what));
    faults_.TensorName(field, name);
  }

  void Npy(const v1::NpyData& npy) {
    Inputs(At("npy.inputs"), npy.inputs(), "a file per input of the model, input: images.npy",
           [&](const std::string& field, const std::string& path) {
             faults_.Path(field, path, "an .npy file");
           });
    Holdout(At("npy.holdout"), npy.holdout());
  }

  void Npz(const v1::NpzData& npz) {
    faults_.Path(At("npz.path"), npz.path(), "an .npz file");
    Inputs(At("npz.inputs"), npz.inputs(),
           "how each input of the model is filled, for example input: images",
           [&](const std::string& field, const std::string& array) {
             Name(field, array, "the name of an array in the file");
           });
    Holdout(At("npz.holdout"), npz.holdout());
  }

  void Images(const v1::ImagesData& images) {
    if (images.list().empty()) {
      faults_.Path(At("images.path"), images.path(),
                   "a folder with a folder of images for each class");
    } else {
      faults_.Path(At("images.list"), images.list(), "");
      if (!images.path().empty()) faults_.Path(At("images.path"), images.path(), "");
    }
    if (images.eval_list().empty()) {
      return Held("images", images.holdout(), "eval_path", images.eval_path());
    }
    Held("images", images.holdout(), "eval_list", images.eval_list());
    if (!images.eval_path().empty()) faults_.Path(At("images.eval_path"), images.eval_path(), "");
  }

  void Tfrecord(const v1::TfrecordData& tfrecord) {
    faults_.Path(At("tfrecord.path"), tfrecord.path(), "a TFRecord file, a folder, or a pattern");
    Held("tfrecord", tfrecord.holdout(), "eval_path", tfrecord.eval_path());
    Inputs(
        At("tfrecord.inputs"), tfrecord.inputs(),
        "how each input of the model is filled, for example tokens: {fixed: {feature: input_ids}}",
        [&](const std::string& field, const v1::ExampleInput& input) { Example(field, input); });
  }

  void Example(const std::string& field, const v1::ExampleInput& input) {
    switch (input.kind_case()) {
      case v1::ExampleInput::kFixed:
        faults_.TensorName(field + ".fixed.feature", input.fixed().feature());
        faults_.Finite(field + ".fixed.offset", input.fixed().offset());
        break;
      case v1::ExampleInput::kVariable:
        faults_.TensorName(field + ".variable.feature", input.variable().feature());
        faults_.Finite(field + ".variable.pad", input.variable().pad());
        break;
      case v1::ExampleInput::kImage:
        faults_.TensorName(field + ".image.feature", input.image().feature());
        break;
      case v1::ExampleInput::kScatter:
        Name(field + ".scatter.positions", input.scatter().positions(), "the feature of positions");
        Name(field + ".scatter.values", input.scatter().values(), "the feature of values");
        faults_.TensorName(field + ".scatter.weights", input.scatter().weights());
        faults_.Finite(field + ".scatter.fill", input.scatter().fill());
        break;
      case v1::ExampleInput::KIND_NOT_SET:
        faults_.Add(field, "required: one of fixed, variable, image, scatter");
        break;
    }
  }

  void Tar(const v1::TarData& tar) {
    faults_.Path(At("tar.path"), tar.path(), "a tar file, a folder, or a pattern");
    Held("tar", tar.holdout(), "eval_path", tar.eval_path());
    Inputs(At("tar.inputs"), tar.inputs(),
           "how each input of the model is filled, for example input: {extension: jpg, image: {}}",
           [&](const std::string& field, const v1::TarInput& input) { Member(field, input); });
  }

  void Member(const std::string& field, const v1::TarInput& input) {
    const std::string extensions = field + ".extension";
    Name(extensions, input.extension(), "the extension of the member, jpg or jpg;png");
    for (const absl::string_view extension : absl::StrSplit(input.extension(), ';')) {
      if (input.extension().empty()) break;
      if (extension.empty() || absl::StartsWith(extension, ".") ||
          absl::StrContains(extension, '/')) {
        faults_.Add(extensions, absl::StrCat("must be what follows the base name and its dot, jpg "
                                             "or seg.png, several separated by ';' (is \"",
                                             input.extension().substr(0, 64), "\")"));
        break;
      }
    }
    if (input.kind_case() == v1::TarInput::KIND_NOT_SET) {
      faults_.Add(field, "required: one of image, integer, array, json");
    } else if (input.has_json()) {
      Name(field + ".json.field", input.json().field(),
           "a field of the object, label or meta.label");
    }
  }

  void Csv(const v1::CsvData& csv) {
    faults_.Path(At("csv.path"), csv.path(), "a file of lines, a folder, or a pattern");
    Held("csv", csv.holdout(), "eval_path", csv.eval_path());
    const std::string& separator = csv.separator();
    if (separator.size() > 1 || separator == "\"" || separator == "\n" || separator == "\r") {
      faults_.Add(At("csv.separator"), "must be one byte, and no quotation mark or end of a line");
    }
    if (csv.criteo() && csv.header()) {
      faults_.Add(At("csv.header"), "not together with criteo: Criteo's files have no header");
    }
    Inputs(
        At("csv.inputs"), csv.inputs(),
        "how each input of the model is filled, for example input: {columns: [1-13], number: {}}",
        [&](const std::string& field, const v1::CsvInput& input) { Columns(field, input); });
  }

  void Columns(const std::string& field, const v1::CsvInput& input) {
    if (input.columns().empty()) {
      faults_.Add(field + ".columns", "required: names from the header, numbers from 1, or 3-15");
    } else if (input.columns_size() > kColumnsMax) {
      faults_.Add(field + ".columns",
                  absl::StrCat("at most ", kColumnsMax, " (has ", input.columns_size(), ")"));
    } else {
      for (int i = 0; i < input.columns_size(); ++i) {
        Name(absl::StrCat(field, ".columns[", i, "]"), input.columns(i), "a name or a number");
      }
    }
    switch (input.kind_case()) {
      case v1::CsvInput::kNumber:
        faults_.Finite(field + ".number.missing", input.number().missing());
        faults_.Finite(field + ".number.scale", input.number().scale());
        faults_.Finite(field + ".number.offset", input.number().offset());
        break;
      case v1::CsvInput::kHash:
        faults_.InRange<int64_t>(field + ".hash.buckets", input.hash().buckets(), 1, kIdMax,
                                 "ids are in [0, buckets)");
        break;
      case v1::CsvInput::kVocabulary:
        faults_.Path(field + ".vocabulary.path", input.vocabulary().path(),
                     "a text file with a category in each line");
        if (input.vocabulary().has_unknown()) {
          faults_.InRange<int64_t>(field + ".vocabulary.unknown", input.vocabulary().unknown(), 0,
                                   kIdMax);
        }
        break;
      case v1::CsvInput::KIND_NOT_SET:
        faults_.Add(field, "required: one of number, hash, vocabulary");
        break;
    }
  }

  const v1::DataSpec& data_;
  const std::string field_;
  FieldChecks& faults_;
};

}  // namespace

void CheckSource(const v1::DataSpec& data, absl::string_view field, FieldChecks& faults) {
  SourceCheck(data, field, faults).Run();
}

bool DecodesImages(const v1::DataSpec& data) {
  const auto has_image = [](const auto& inputs) {
    return std::any_of(inputs.begin(), inputs.end(),
                       [](const auto& input) { return input.second.has_image(); });
  };
  return data.has_images() || has_image(data.tfrecord().inputs()) || has_image(data.tar().inputs());
}

}  // namespace muster
