// Fills the rows of a model from the features of tf.train.Example messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/byte_values.h"
#include "lib/data/dataset.h"
#include "lib/data/format/example.h"
#include "lib/data/image_rows.h"
#include "lib/data/input_use.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Reads `data.tfrecord.inputs`. Immutable; threads may share it.
class ExampleRows {
 public:
  // Checks that each graph input has a rule that fits it. Errors name the field at fault.
  // `make_images` is called for inputs that are images; it may be empty if there are none.
  static absl::StatusOr<std::unique_ptr<const ExampleRows>> Create(
      const v1::DataSpec& spec, const v1::Graph& graph, const MakeImageRows& make_images);

  int inputs() const { return static_cast<int>(columns_.size()); }
  int64_t row_bytes(int input) const;
  absl::Span<const kernels::ByteValues> row_values(int input) const;  // see Dataset

  // Inputs with ids that may not count as targets, because a loss ignores one of them.
  absl::Span<const int> counted_inputs() const { return counted_inputs_; }

  // Returns whether images are decoded.
  bool has_images() const;

  // The rules by which targets are counted, as text without a limit of its length.
  std::string DescribeCounted() const;

  enum class Use { kTraining, kEvaluation };

  // Fills row `row` of each input that has memory. Returns INVALID_ARGUMENT for an Example that is
  // damaged or does not fit, without its place. Allocates nothing after the first calls of a
  // thread.
  absl::Status Fill(absl::Span<const std::byte> example, SampleRef sample, Use use, int64_t row,
                    Dataset::Rows rows) const;

  // Appends the number of counted targets of each counted input to `counts`. Fails as Fill() does.
  absl::Status CountTargets(absl::Span<const std::byte> example,
                            std::vector<int32_t>& counts) const;

  // Marks the features that the Example has, in the order of features().
  absl::Status Note(absl::Span<const std::byte> example, std::vector<bool>& seen) const;
  struct WantedFeature {
    std::string name;
    std::string field;  // of the job that names it first
    bool is_needed;     // each Example must have it; a list of variable size may be absent
  };
  absl::Span<const WantedFeature> features() const { return features_; }

 private:
  enum class Rule { kFixed, kVariable, kImage, kScatter };
  // A graph input.
  struct Column {
    std::string name;
    Rule rule = Rule::kFixed;
    bool is_f32 = false;
    int64_t elements = 0;
    InputUse use;
    int feature = -1;    // the list, or the values of a scatter
    int positions = -1;  // of a scatter
    int weights = -1;    // of a scatter; < 0: all values count
    double offset = 0;   // is added to the numbers of a fixed list
    double rest = 0;     // the value of elements that the feature does not give
    int64_t lowest = 0;  // ids of the model that fit i32, besides the ignored one
    int64_t limit = 0;
    std::unique_ptr<const ImageRows> images;
  };
  struct Scratch;

  ExampleRows() = default;
  absl::StatusOr<Column> MakeColumn(const v1::DataSpec& spec, const v1::GraphInput& input,
                                    const InputUse& use, const MakeImageRows& make_images);
  int Want(const std::string& feature, const std::string& otherwise, std::string field,
           bool is_needed = true);
  absl::Status At(int feature, const absl::Status& status) const;
  absl::Status AtFault(int feature, absl::string_view message) const;

  absl::Status FillColumn(const Column& column, SampleRef sample, Use use, Scratch& scratch,
                          absl::Span<std::byte> to) const;
  absl::Status FillFixed(const Column& column, Scratch& scratch, std::byte* to) const;
  absl::Status FillVariable(const Column& column, Scratch& scratch, std::byte* to) const;
  absl::Status FillScatter(const Column& column, Scratch& scratch, std::byte* to) const;
  absl::Status FillImage(const Column& column, SampleRef sample, Use use, const Scratch& scratch,
                         absl::Span<std::byte> to) const;
  // Reads a list of integers up to the elements of the column, and returns how many it has.
  absl::StatusOr<int64_t> StoreList(const Column& column, Scratch& scratch, std::byte* to) const;
  // Writes integers as elements of the column. Checks ids. `first`: the number of the first one in
  // the list.
  absl::Status Store(const Column& column, absl::Span<const int64_t> integers, std::byte* to,
                     int64_t first = 0) const;

  std::vector<Column> columns_;  // by graph input
  std::vector<int> counted_inputs_;
  std::vector<WantedFeature> features_;
  std::optional<FeatureFinder> finder_;
};

}  // namespace muster
