#include "lib/data/dataset.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "lib/data/image_rows.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;
constexpr int64_t kCountedAtOnce = 1024;  // samples whose targets are read per pass

// Counts the targets of `samples` samples. `read(first, count, rows)` reads some of them.
template <typename Read>
absl::StatusOr<int64_t> CountByReading(const Dataset::Target& target, int64_t samples, Read read) {
  const int64_t row_bytes = RowBytes(target.graph->inputs(target.input));
  std::vector<std::byte> memory(std::min(samples, kCountedAtOnce) * row_bytes);
  std::vector<absl::Span<std::byte>> rows(target.graph->inputs_size());
  int64_t counted = 0;
  for (int64_t first = 0; first < samples; first += kCountedAtOnce) {
    const int64_t count = std::min(kCountedAtOnce, samples - first);
    rows[target.input] = absl::MakeSpan(memory).first(count * row_bytes);
    RETURN_IF_ERROR(read(first, count, rows));
    counted += CountTargets(target.use, rows[target.input]);
  }
  return counted;
}

bool HasImages(const v1::DataSpec& data) {
  const auto has_image = [](const auto& inputs) {
    return std::ranges::any_of(inputs, [](const auto& input) { return input.second.has_image(); });
  };
  return data.has_images() || has_image(data.tfrecord().inputs()) ||
         has_image(data.tar().inputs()) ||
         std::ranges::any_of(data.mixture().parts(),
                             [](const v1::MixturePart& part) { return HasImages(part.data()); });
}

}  // namespace

absl::StatusOr<int64_t> Dataset::CountTargets(const Target& target,
                                              absl::Span<const SampleRef> samples) const {
  return CountByReading(target, std::ssize(samples), [&](int64_t first, int64_t count, Rows rows) {
    return Read(samples.subspan(first, count), rows);
  });
}

absl::StatusOr<int64_t> Dataset::CountEvaluationTargets(const Target& target, int64_t first,
                                                        int64_t count) const {
  return CountByReading(target, count, [&](int64_t from, int64_t some, Rows rows) {
    return ReadEvaluation(first + from, some, rows);
  });
}

int64_t RowBytes(const v1::GraphInput& input) {
  int64_t elements = 1;
  for (int d = 1; d < input.shape_size(); ++d) elements *= input.shape(d);
  return elements * 4;
}

std::vector<int64_t> RowBytes(const Dataset& dataset, const v1::Graph& graph) {
  std::vector<int64_t> bytes;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    const int64_t declared = RowBytes(graph.inputs(i));
    bytes.push_back(dataset.row_values(i).empty() ? declared : declared / 4);
  }
  return bytes;
}

int64_t BlockSamples(const v1::DataSpec& data, int64_t stored_bytes, int64_t samples) {
  const int64_t asked = data.shuffle().block().samples();
  if (asked > 0) return asked;
  return std::clamp<int64_t>(kBlockBytes / std::max<int64_t>(1, stored_bytes), 1, samples);
}

v1::DatasetFacts FactsOf(const Dataset& dataset, const v1::DataSpec& data, const v1::Graph& graph) {
  v1::DatasetFacts facts;
  facts.set_samples(dataset.samples());
  facts.set_evaluation_samples(dataset.evaluation_samples());
  std::string fingerprint = dataset.fingerprint();
  if (HasImages(data)) absl::StrAppend(&fingerprint, ":pixels-", kImageRowsVersion);
  facts.set_fingerprint(fingerprint);
  for (const int64_t samples : dataset.part_samples()) facts.add_part_samples(samples);
  if (!data.shuffle().has_block()) return facts;
  int64_t bytes = dataset.mean_stored_bytes();
  if (bytes == 0) {
    const std::vector<int64_t> rows = RowBytes(dataset, graph);
    bytes = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  }
  facts.set_block_samples(BlockSamples(data, bytes, dataset.samples()));
  return facts;
}

}  // namespace muster
