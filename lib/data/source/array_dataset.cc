#include "lib/data/source/array_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "kernels/byte_values.h"
#include "lib/data/data_fault.h"
#include "lib/data/fingerprint.h"
#include "lib/data/format/npy.h"
#include "lib/data/input_use.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kPieceBytes = 1 << 16;  // of an array, when its elements are converted

// A graph input, and the array that fills it.
struct Column {
  std::unique_ptr<const SampleArray> array;
  v1::DType dtype;
  int64_t row_elements;
  // How many targets of each sample count, if a loss ignores some. Empty if a sample has one
  // target, which is as quick to read.
  std::vector<uint32_t> counts = {};

  NpyType type() const { return array->header().type; }
  // Bytes for an f32 input are kept as bytes.
  bool is_bytes() const { return dtype == v1::DTYPE_F32 && type() == NpyType::kU8; }
  int64_t row_bytes() const { return row_elements * (is_bytes() ? 1 : 4); }
};

// Returns the value of each byte: the byte itself, because arrays are not scaled.
kernels::ByteValues ValuesOfBytes() {
  kernels::ByteValues values;
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

// Reads elements [first, first + count) of the column's array as elements of its input.
absl::Status ReadElements(const Column& column, int64_t first, int64_t count, std::byte* to) {
  const int64_t bytes = NpyTypeBytes(column.type());
  const bool is_f32 = column.dtype == v1::DTYPE_F32;
  if (column.is_bytes() || column.type() == (is_f32 ? NpyType::kF32 : NpyType::kI32)) {
    return column.array->Read(first * bytes, absl::MakeSpan(to, count * bytes));
  }
  std::byte buffer[kPieceBytes];
  while (count > 0) {
    const int64_t some = std::min(count, kPieceBytes / bytes);
    RETURN_IF_ERROR(column.array->Read(first * bytes, absl::MakeSpan(buffer, some * bytes)));
    (is_f32 ? NpyToF32 : NpyToI32)(column.type(), buffer, to, some);
    first += some;
    count -= some;
    to += some * 4;
  }
  return absl::OkStatus();
}

class ArrayDataset : public Dataset {
 public:
  // The first `samples` of `all` are for training, the others are held out.
  ArrayDataset(std::vector<Column> columns, int64_t samples, int64_t all)
      : columns_(std::move(columns)), samples_(samples), all_(all) {}

  absl::StatusOr<int64_t> CountTargets(const Target& target,
                                       absl::Span<const SampleRef> samples) const override {
    const std::vector<uint32_t>& counts = columns_[target.input].counts;
    if (counts.empty()) return Dataset::CountTargets(target, samples);
    int64_t counted = 0;
    for (const SampleRef& ref : samples) counted += counts[ref.sample];
    return counted;
  }

  absl::StatusOr<int64_t> CountEvaluationTargets(const Target& target, int64_t first,
                                                 int64_t count) const override {
    const std::vector<uint32_t>& counts = columns_[target.input].counts;
    if (counts.empty()) return Dataset::CountEvaluationTargets(target, first, count);
    const auto begin = counts.begin() + samples_ + first;
    return std::accumulate(begin, begin + count, int64_t{0});
  }

  int64_t samples() const override { return samples_; }
  int64_t evaluation_samples() const override { return all_ - samples_; }

  std::string fingerprint() const override {
    std::vector<std::string> facts = {"npy"};
    for (const Column& column : columns_) {
      facts.emplace_back(NpyTypeName(column.type()));
      facts.push_back(absl::StrJoin(column.array->header().shape, "x"));
      facts.push_back(column.array->fingerprint());
    }
    return FingerprintOf(facts);
  }

  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    if (!columns_[input].is_bytes()) return {};
    return absl::MakeConstSpan(&values_, 1);
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CheckSizes(samples.size(), rows);
    for (size_t row = 0, run = 0; row < samples.size(); row += run) {
      const int64_t sample = samples[row].sample;
      // Neighbours in the files are read at once.
      for (run = 1; row + run < samples.size(); ++run) {
        if (samples[row + run].sample != sample + static_cast<int64_t>(run)) break;
      }
      CHECK(0 <= sample && sample <= samples_ - static_cast<int64_t>(run)) << sample;
      RETURN_IF_ERROR(CopySamples(sample, run, row, rows));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CheckSizes(count, rows);
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    return CopySamples(samples_ + first, count, 0, rows);
  }

 private:
  void CheckSizes(size_t count, Rows rows) const {
    CHECK_EQ(rows.size(), columns_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i].empty() || rows[i].size() == count * columns_[i].row_bytes());
    }
  }

  absl::Status CopySamples(int64_t first, int64_t count, size_t to_row, Rows rows) const {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].empty()) continue;
      const Column& column = columns_[i];
      RETURN_IF_ERROR(ReadElements(column, first * column.row_elements, count * column.row_elements,
                                   rows[i].data() + to_row * column.row_bytes()));
    }
    return absl::OkStatus();
  }

  const kernels::ByteValues values_ = ValuesOfBytes();
  const std::vector<Column> columns_;  // by graph input
  const int64_t samples_;
  const int64_t all_;
};

std::string FieldOf(const ArrayDatasetOptions& options, const std::string& input) {
  return absl::StrCat(options.field, ".inputs.", input);
}

absl::Status CheckShape(const SampleArray& array, const v1::GraphInput& input,
                        const std::string& field) {
  const std::vector<int64_t>& shape = array.header().shape;
  const bool fits = std::ssize(shape) == input.shape_size() && !shape.empty() &&
                    std::equal(shape.begin() + 1, shape.end(), input.shape().begin() + 1);
  if (!fits) {
    return DataInvalid(
        field, absl::StrCat(array.place(), ": [", absl::StrJoin(shape, ", "), "] but the model's ",
                            input.name(), " is [", absl::StrJoin(input.shape(), ", "),
                            "], the first for the samples"));
  }
  if (shape[0] == 0) return DataTooSmall(field, absl::StrCat(array.place(), ": holds no sample"));
  const NpyType type = array.header().type;
  if (input.dtype() == v1::DTYPE_I32 && !IsInteger(type)) {
    return DataInvalid(field,
                       absl::StrCat(array.place(), ": ", NpyTypeName(type), " but the model's ",
                                    input.name(), " are ids: save array.astype('<i4')"));
  }
  return absl::OkStatus();
}

int64_t IdAt(NpyType type, const std::byte* bytes) {
  switch (type) {
    case NpyType::kI32: {
      int32_t id;
      std::memcpy(&id, bytes, sizeof(id));
      return id;
    }
    case NpyType::kI64: {
      int64_t id;
      std::memcpy(&id, bytes, sizeof(id));
      return id;
    }
    default:
      return std::to_integer<int64_t>(*bytes);
  }
}

// Checks that the model accepts every id, and that it fits i32. Counts the ids of each sample that
// are not ignored.
absl::Status CheckIds(Column& column, const InputUse& use, const std::string& field) {
  if (use.ignore_index && column.row_elements > 1) {
    column.counts.resize(column.array->header().shape[0]);
  }
  const int64_t lowest = std::max<int64_t>(use.lowest, std::numeric_limits<int32_t>::min());
  const int64_t limit =
      std::min<int64_t>(use.limit, int64_t{std::numeric_limits<int32_t>::max()} + 1);
  const int64_t all = column.array->header().data_bytes, bytes = NpyTypeBytes(column.type());
  std::byte buffer[kPieceBytes];
  for (int64_t offset = 0; offset < all; offset += kPieceBytes) {
    const auto some = absl::MakeSpan(buffer, std::min(kPieceBytes, all - offset));
    RETURN_IF_ERROR(column.array->Read(offset, some));
    for (int64_t at = 0; at < std::ssize(some); at += bytes) {
      const int64_t id = IdAt(column.type(), buffer + at);
      const int64_t row = (offset + at) / bytes / column.row_elements;
      if (use.Takes(id) && id >= std::numeric_limits<int32_t>::min() &&
          id <= std::numeric_limits<int32_t>::max()) {
        if (!column.counts.empty()) column.counts[row] += id != use.ignore_index;
        continue;
      }
      return DataInvalid(field, absl::StrCat(column.array->place(), ": ", id, " in row ", row,
                                             "; the model takes ", lowest, " to ", limit - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Column> OpenColumn(const google::protobuf::Map<std::string, std::string>& inputs,
                                  const v1::GraphInput& input, const InputUse& use,
                                  const ArrayDatasetOptions& options, int64_t& bytes_left) {
  const std::string field = FieldOf(options, input.name());
  const auto named = inputs.find(input.name());
  if (named == inputs.end()) {
    return DataInvalid(
        field, absl::StrCat("required: ", options.thing, " for the model's ", input.name(), ", [",
                            absl::StrJoin(input.shape(), ", "), "]"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<SampleArray> array, options.open(named->second, field));
  RETURN_IF_ERROR(CheckShape(*array, input, field));
  const bool has_ids = input.dtype() == v1::DTYPE_I32;
  if (has_ids) {
    const int64_t bytes = array->header().data_bytes;
    if (bytes > bytes_left) return DataTooLarge(field, array->place(), bytes_left);
    bytes_left -= bytes;
    RETURN_IF_ERROR(array->Hold());
  }
  Column column{std::move(array), input.dtype(), RowBytes(input) / 4};
  if (has_ids) RETURN_IF_ERROR(CheckIds(column, use, field));
  return column;
}

absl::Status CheckNames(const google::protobuf::Map<std::string, std::string>& inputs,
                        const v1::Graph& graph, const ArrayDatasetOptions& options) {
  for (const auto& [name, named] : inputs) {
    if (FindInput(graph, name) != nullptr) continue;
    std::vector<std::string> known;
    for (const v1::GraphInput& input : graph.inputs()) known.push_back(input.name());
    return DataInvalid(
        FieldOf(options, name),
        absl::StrCat("the model has no such input; it reads ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenArrayDataset(
    const google::protobuf::Map<std::string, std::string>& inputs, const v1::Graph& graph,
    const ArrayDatasetOptions& options) {
  const std::string holdout_field = absl::StrCat(options.field, ".holdout");
  if (!(options.holdout >= 0 && options.holdout <= 0.5)) {
    return DataInvalid(holdout_field,
                       absl::StrCat("must be in [0, 0.5] (is ", options.holdout, ")"));
  }
  RETURN_IF_ERROR(CheckNames(inputs, graph, options));
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  std::vector<Column> columns;
  int64_t bytes_left = options.held_bytes_max;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    ASSIGN_OR_RETURN(Column column,
                     OpenColumn(inputs, graph.inputs(i), uses[i], options, bytes_left));
    columns.push_back(std::move(column));
    const int64_t rows = columns.back().array->header().shape[0];
    const int64_t first = columns[0].array->header().shape[0];
    if (rows != first) {
      return DataInvalid(FieldOf(options, graph.inputs(i).name()),
                         absl::StrCat(columns.back().array->place(), ": ", rows, " samples, but ",
                                      graph.inputs(0).name(), " has ", first));
    }
  }
  if (columns.empty()) return DataInvalid(options.field, "the model reads no data");
  const int64_t all = columns[0].array->header().shape[0];
  const int64_t samples = all - std::llround(all * options.holdout);
  if (samples < 1) {
    return DataTooSmall(holdout_field, absl::StrCat("leaves none of ", all, " to train on"));
  }
  return std::make_unique<ArrayDataset>(std::move(columns), samples, all);
}

}  // namespace muster
