#include "lib/data/source/mixture_dataset.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/data/order/random_stream.h"
#include "lib/data/source/open_dataset.h"
#include "lib/security/sha256.h"
#include "lib/status/field_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr size_t kFingerprintDigits = 32;

std::string PartField(size_t part) { return absl::StrCat("data.mixture.parts[", part, "]"); }

// Names the field of a part instead of that of a job: "data.npy" becomes
// "data.mixture.parts[1].data.npy".
absl::Status InPart(const absl::Status& status, size_t part) {
  const std::vector<FieldFault> faults = FaultsOf(status);
  if (status.ok()) return status;
  if (faults.size() != 1) return Annotate(status, PartField(part));
  return AtField(WithReason(absl::Status(status.code(), faults[0].description), ReasonOf(status)),
                 absl::StrCat(PartField(part), ".", faults[0].field));
}

class MixtureDataset : public Dataset {
 public:
  MixtureDataset(std::vector<std::unique_ptr<const Dataset>> parts, const v1::Graph& graph)
      : parts_(std::move(parts)), row_bytes_(RowBytes(*parts_[0], graph)) {
    for (const auto& part : parts_) {
      samples_.Add(part->samples());
      evaluation_samples_.Add(part->evaluation_samples());
    }
  }

  int64_t samples() const override { return samples_.total(); }
  int64_t evaluation_samples() const override { return evaluation_samples_.total(); }

  std::vector<int64_t> part_samples() const override {
    std::vector<int64_t> samples;
    for (const auto& part : parts_) samples.push_back(part->samples());
    return samples;
  }

  std::string fingerprint() const override {
    std::string facts = "muster-mixture-01";
    bool has_any = false;
    for (const auto& part : parts_) {
      const std::string of_part = part->fingerprint();
      has_any = has_any || !of_part.empty();
      absl::StrAppend(&facts, "\n", part->samples(), " ", part->evaluation_samples(), " ", of_part);
    }
    if (!has_any) return "";
    Sha256 hash;
    hash.Add(facts);
    return absl::BytesToHexString(hash.Finish()).substr(0, kFingerprintDigits);
  }

  bool is_slow() const override {
    return std::ranges::any_of(parts_, [](const auto& part) { return part->is_slow(); });
  }

  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    return parts_[0]->row_values(input);
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    std::vector<SampleRef> of_part;
    for (size_t at = 0; at < samples.size(); at += of_part.size()) {
      const size_t part = samples_.PartOf(samples[at].sample);
      const int64_t first = samples_.first(part), end = first + parts_[part]->samples();
      of_part.clear();
      for (size_t i = at; i < samples.size(); ++i) {
        const auto [epoch, sample] = samples[i];
        if (sample < first || sample >= end) break;
        of_part.push_back({epoch, sample - first});
      }
      RETURN_IF_ERROR(
          InPart(parts_[part]->Read(of_part, RowsFrom(rows, at, of_part.size())), part));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    return ForEachHeldOut(
        first, count, [&](size_t part, int64_t in_part, int64_t at, int64_t here) {
          return parts_[part]->ReadEvaluation(in_part, here, RowsFrom(rows, at, here));
        });
  }

  absl::StatusOr<int64_t> CountTargets(const Target& target,
                                       absl::Span<const SampleRef> samples) const override {
    std::vector<std::vector<SampleRef>> by_part(parts_.size());
    for (const auto& [epoch, sample] : samples) {
      const size_t part = samples_.PartOf(sample);
      by_part[part].push_back({epoch, sample - samples_.first(part)});
    }
    int64_t counted = 0;
    for (size_t part = 0; part < parts_.size(); ++part) {
      const auto of_part = parts_[part]->CountTargets(target, by_part[part]);
      if (!of_part.ok()) return InPart(of_part.status(), part);
      counted += *of_part;
    }
    return counted;
  }

  absl::StatusOr<int64_t> CountEvaluationTargets(const Target& target, int64_t first,
                                                 int64_t count) const override {
    int64_t counted = 0;
    RETURN_IF_ERROR(ForEachHeldOut(
        first, count, [&](size_t part, int64_t in_part, int64_t, int64_t here) -> absl::Status {
          ASSIGN_OR_RETURN(const int64_t of_part,
                           parts_[part]->CountEvaluationTargets(target, in_part, here));
          counted += of_part;
          return absl::OkStatus();
        }));
    return counted;
  }

 private:
  // Calls `use(part, first of the part, place among all, count)` for each part's share of the
  // held-out samples [first, first + count).
  template <typename Use>
  absl::Status ForEachHeldOut(int64_t first, int64_t count, Use use) const {
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first) << first;
    for (int64_t at = 0; at < count;) {
      const size_t part = evaluation_samples_.PartOf(first + at);
      const int64_t in_part = first + at - evaluation_samples_.first(part);
      const int64_t here = std::min(count - at, parts_[part]->evaluation_samples() - in_part);
      RETURN_IF_ERROR(InPart(use(part, in_part, at, here), part));
      at += here;
    }
    return absl::OkStatus();
  }

  // Numbers of samples, one part after the other.
  class Numbering {
   public:
    void Add(int64_t samples) { ends_.push_back(total() + samples); }
    int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }
    int64_t first(size_t part) const { return part == 0 ? 0 : ends_[part - 1]; }
    size_t PartOf(int64_t sample) const {
      CHECK(0 <= sample && sample < total()) << sample;
      return std::ranges::upper_bound(ends_, sample) - ends_.begin();
    }

   private:
    std::vector<int64_t> ends_;  // by part
  };

  // Returns the memory for `count` samples from the one at `at`.
  std::vector<absl::Span<std::byte>> RowsFrom(Rows rows, int64_t at, int64_t count) const {
    std::vector<absl::Span<std::byte>> from(rows.begin(), rows.end());
    for (size_t i = 0; i < from.size(); ++i) {
      if (!from[i].empty()) from[i] = from[i].subspan(at * row_bytes_[i], count * row_bytes_[i]);
    }
    return from;
  }

  const std::vector<std::unique_ptr<const Dataset>> parts_;
  const std::vector<int64_t> row_bytes_;  // by graph input
  Numbering samples_;
  Numbering evaluation_samples_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> MixDatasets(
    std::vector<std::unique_ptr<const Dataset>> parts, const v1::Graph& graph) {
  CHECK(!parts.empty());
  for (size_t part = 1; part < parts.size(); ++part) {
    for (int input = 0; input < graph.inputs_size(); ++input) {
      if (std::ranges::equal(parts[part]->row_values(input), parts[0]->row_values(input))) continue;
      return DataInvalid(PartField(part),
                         absl::StrCat("reads input '", graph.inputs(input).name(),
                                      "' with other values of a byte than part 0; store both in "
                                      "one form, and give both the same mean and std"));
    }
  }
  return std::make_unique<MixtureDataset>(std::move(parts), graph);
}

absl::StatusOr<std::unique_ptr<const Dataset>> OpenMixtureDataset(const v1::DataSpec& spec,
                                                                  const v1::Graph& graph,
                                                                  const DataOptions& options) {
  const auto count = static_cast<size_t>(spec.mixture().parts_size());
  if (count == 0) return DataInvalid("data.mixture.parts", "needs at least one part");
  DataOptions of_part = options;
  of_part.held_bytes_max = options.held_bytes_max / static_cast<int64_t>(count);
  std::vector<std::unique_ptr<const Dataset>> parts;
  for (size_t i = 0; i < count; ++i) {
    v1::DataSpec part = spec.mixture().parts(static_cast<int>(i)).data();
    if (part.has_mixture()) return DataInvalid(PartField(i), "must not be a mixture");
    part.set_seed(SeedOfPart(spec.seed(), static_cast<int>(i)));
    auto opened = OpenSource(part, graph, of_part);
    if (!opened.ok()) return InPart(opened.status(), i);
    parts.push_back(*std::move(opened));
  }
  return MixDatasets(std::move(parts), graph);
}

}  // namespace muster
