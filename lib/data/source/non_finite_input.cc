#include "lib/data/source/non_finite_input.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

// Memory for one sample at a time, of the inputs that can have values that are not finite.
class FloatRow {
 public:
  FloatRow(const Dataset& dataset, const v1::Graph& graph)
      : memory_(graph.inputs_size()), rows_(graph.inputs_size()) {
    for (int i = 0; i < graph.inputs_size(); ++i) {
      if (graph.inputs(i).dtype() != v1::DTYPE_F32 || !dataset.row_values(i).empty()) continue;
      memory_[i].resize(RowBytes(graph.inputs(i)));
      rows_[i] = absl::MakeSpan(memory_[i]);
    }
  }

  Dataset::Rows rows() const { return rows_; }

  struct Fault {
    int input = 0;
    float value = 0;
  };
  std::optional<Fault> FirstNonFinite() const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (size_t at = 0; at < rows_[i].size(); at += sizeof(float)) {
        float value;
        std::memcpy(&value, rows_[i].data() + at, sizeof(value));
        if (!std::isfinite(value)) return Fault{static_cast<int>(i), value};
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<std::vector<std::byte>> memory_;  // by graph input; empty: not looked at
  std::vector<absl::Span<std::byte>> rows_;     // the memory, in the form that Read() takes
};

// Returns the text of NameNonFiniteInput(). It names `place` if no file holds the input.
std::string Describe(const FloatRow::Fault& fault, const v1::DataSpec& spec, const v1::Graph& graph,
                     int64_t row, const std::string& place) {
  const std::string& input = graph.inputs(fault.input).name();
  const auto file = spec.npy().inputs().find(input);
  const auto array = spec.npz().inputs().find(input);
  std::string found = place;
  if (file != spec.npy().inputs().end()) {
    found = absl::StrCat("row ", row, " of ", file->second);
  } else if (array != spec.npz().inputs().end()) {
    found = absl::StrCat("row ", row, " of ", spec.npz().path(), ": array '", array->second, "'");
  }
  return absl::StrCat("input '", input, "' has ",
                      std::isnan(fault.value) ? "a NaN" : "an infinite value", " in ", found);
}

}  // namespace

std::string NameNonFiniteInput(const Dataset& dataset, const v1::DataSpec& spec,
                               const v1::Graph& graph, absl::Span<const SampleRef> samples) {
  const FloatRow row(dataset, graph);
  for (const SampleRef& sample : samples) {
    if (!dataset.Read({&sample, 1}, row.rows()).ok()) continue;
    if (const auto fault = row.FirstNonFinite()) {
      return Describe(*fault, spec, graph, sample.sample, absl::StrCat("sample ", sample.sample));
    }
  }
  return "";
}

std::string NameNonFiniteHeldOut(const Dataset& dataset, const v1::DataSpec& spec,
                                 const v1::Graph& graph, int64_t first, int64_t count) {
  const FloatRow row(dataset, graph);
  for (int64_t sample = first; sample < first + count; ++sample) {
    if (!dataset.ReadEvaluation(sample, 1, row.rows()).ok()) continue;
    if (const auto fault = row.FirstNonFinite()) {
      // The held-out rows of a file come after those that train.
      return Describe(*fault, spec, graph, dataset.samples() + sample,
                      absl::StrCat("held-out sample ", sample));
    }
  }
  return "";
}

}  // namespace muster
