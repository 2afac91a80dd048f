#include "lib/job/data_check.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "lib/job/source_check.h"
#include "lib/limits/limits.h"

namespace muster {
namespace {

constexpr int kMixturePartsMin = 2;
constexpr int kMixturePartsMax = 64;
constexpr int64_t kWindowBlocksMax = 4096;
constexpr int64_t kBlockSamplesMax = int64_t{1} << 31;

// Returns the names of all sources, from the proto, so that a new one is not forgotten.
std::string SourceNames(const std::vector<int>& except) {
  const auto& source = *v1::DataSpec::descriptor()->FindOneofByName("source");
  std::vector<std::string> names;
  for (int i = 0; i < source.field_count(); ++i) {
    if (std::ranges::count(except, source.field(i)->number()) == 0) {
      names.push_back(source.field(i)->name());
    }
  }
  return absl::StrJoin(names, ", ");
}

class DataCheck {
 public:
  DataCheck(const v1::JobSpec& spec, FieldChecks& faults) : spec_(spec), faults_(faults) {}

  void Run() {
    const v1::DataSpec& data = spec_.data();
    if (data.source_case() == v1::DataSpec::SOURCE_NOT_SET) {
      faults_.Add("data", absl::StrCat("required: one of ", SourceNames({})));
    } else if (data.has_external()) {
      External(data);
    } else if (data.has_mixture()) {
      Mixture(data);
    } else {
      CheckSource(data, "data", faults_);
      Image(data, "data");
    }
    if (data.has_external() != spec_.model().has_external()) {
      faults_.Add("data.external",
                  "goes only with model.external, whose program reads the samples");
    }
    BatchSize();
    if (!data.has_external()) Order(data);
    faults_.AtLeast("data.damaged_max", data.damaged_max(), 0,
                    "0 fails the job at the first damaged record");
    faults_.AtLeast("data.memory_bytes", data.memory_bytes(), 0,
                    "0 takes a quarter of the memory of the container");
  }

 private:
  // The program reads the samples, so the job file cannot say how.
  void External(const v1::DataSpec& data) {
    const auto refuse = [&](bool is_set, absl::string_view field) {
      if (!is_set) return;
      faults_.Add(absl::StrCat("data.", field),
                  "not with data.external, whose program reads the samples; remove it");
    };
    refuse(data.has_image(), "image");
    refuse(data.last_batch() == v1::LAST_BATCH_CONTINUE, "last_batch");
    refuse(data.has_shuffle(), "shuffle");
    refuse(data.damaged_max() > 0, "damaged_max");
    refuse(data.memory_bytes() > 0, "memory_bytes");
  }

  void Mixture(const v1::DataSpec& data) {
    constexpr char kParts[] = "data.mixture.parts";
    if (data.has_image()) {
      faults_.Add("data.image", absl::StrCat("not with data.mixture; give it to the parts, ",
                                             kParts, "[0].data.image"));
    }
    const int parts = data.mixture().parts_size();
    if (!faults_.InRange(kParts, parts, kMixturePartsMin, kMixturePartsMax,
                         "list as many sources")) {
      return;
    }
    double largest = 0, sum = 0;
    for (const v1::MixturePart& part : data.mixture().parts()) {
      largest = std::max(largest, part.weight());
    }
    // Weights are scaled by the largest one, so that their sum is finite.
    for (const v1::MixturePart& part : data.mixture().parts()) sum += part.weight() / largest;
    for (int i = 0; i < parts; ++i) {
      const double weight = data.mixture().parts(i).weight();
      Part(absl::StrCat(kParts, "[", i, "]"), data.mixture().parts(i), weight / largest / sum);
    }
  }

  // `share` is the part's weight by the sum of all.
  void Part(const std::string& field, const v1::MixturePart& part, double share) {
    if (faults_.Positive(field + ".weight", part.weight(),
                         "the part's share of the samples is its weight by the sum of all") &&
        share * limits::kMixtureSlots < 1) {
      faults_.Add(field + ".weight",
                  absl::StrCat("must be at least 1/", limits::kMixtureSlots,
                               " of the sum of all weights (is ", part.weight(), ")"));
    }
    const std::string data_field = field + ".data";
    const v1::DataSpec& data = part.data();
    if (data.source_case() == v1::DataSpec::SOURCE_NOT_SET || data.has_mixture() ||
        data.has_external()) {
      faults_.Add(data_field, absl::StrCat("required: one of ",
                                           SourceNames({v1::DataSpec::kExternalFieldNumber,
                                                        v1::DataSpec::kMixtureFieldNumber})));
      return;
    }
    const auto refuse = [&](bool is_set, absl::string_view name) {
      if (!is_set) return;
      faults_.Add(absl::StrCat(data_field, ".", name),
                  absl::StrCat("holds for the whole mixture; move it to data.", name));
    };
    refuse(data.batch_size() != 0, "batch_size");
    refuse(data.seed() != 0, "seed");
    refuse(data.last_batch() != v1::LAST_BATCH_UNSPECIFIED, "last_batch");
    refuse(data.has_shuffle(), "shuffle");
    refuse(data.damaged_max() != 0, "damaged_max");
    refuse(data.memory_bytes() != 0, "memory_bytes");
    CheckSource(data, data_field, faults_);
    Image(data, data_field);
  }

  // Checks that `image` is given exactly if the source decodes images.
  void Image(const v1::DataSpec& data, const std::string& field) {
    const std::string image = field + ".image";
    if (DecodesImages(data) && !data.has_image()) {
      faults_.Add(image,
                  "required: how images become rows of the model, for example {train: [{"
                  "random_resized_crop: {size: 224}}], evaluate: [{resize: {size: 256}}, "
                  "{center_crop: {size: 224}}]}");
    } else if (!DecodesImages(data) && data.has_image()) {
      faults_.Add(image,
                  "only with images, and with tfrecord or tar inputs of kind image; remove it");
    } else if (data.has_image()) {
      CheckImage(data.image(), image, faults_);
    }
  }

  void Order(const v1::DataSpec& data) {
    if (!v1::LastBatch_IsValid(data.last_batch())) {
      faults_.Add("data.last_batch",
                  absl::StrCat("must be drop or continue (is number ", data.last_batch(), ")"));
    }
    if (!data.has_shuffle()) return;
    if (data.shuffle().kind_case() == v1::ShuffleSpec::KIND_NOT_SET) {
      faults_.Add("data.shuffle", "required: one of full: {}, block: {}, none: {}");
    }
    if (data.shuffle().has_block() && data.has_mixture()) {
      faults_.Add("data.shuffle.block", "not with data.mixture; use full: {} or none: {}");
    } else if (data.shuffle().has_block()) {
      Block(data.shuffle().block());
    }
  }

  void Block(const v1::BlockShuffle& block) {
    faults_.InRange<int64_t>("data.shuffle.block.samples", block.samples(), 0, kBlockSamplesMax,
                             "0: as many samples as take 8 MiB");
    faults_.InRange<int64_t>("data.shuffle.block.window_blocks", block.window_blocks(), 0,
                             kWindowBlocksMax,
                             absl::StrCat(limits::kWindowBlocksDefault, " is the default"));
    const int64_t lanes = block.lanes(), batch = spec_.data().batch_size();
    if (lanes == 0) return;
    if (lanes < 0 || !absl::has_single_bit(static_cast<uint64_t>(lanes)) || batch % lanes != 0) {
      faults_.Add("data.shuffle.block.lanes",
                  absl::StrCat("must be a power of two that divides data.batch_size = ", batch,
                               " (is ", lanes, ")"));
    }
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
