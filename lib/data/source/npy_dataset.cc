#include "lib/data/source/npy_dataset.h"

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
#include "lib/data/format/npy.h"
#include "lib/data/input_use.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// A graph input, and the file that fills it.
struct Column {
  NpyFile file;
  v1::DType dtype;
  int64_t row_elements;

  // Bytes for an f32 input are kept as bytes.
  bool is_bytes() const { return dtype == v1::DTYPE_F32 && file.type() == NpyType::kU8; }
  int64_t row_bytes() const { return row_elements * (is_bytes() ? 1 : 4); }
};

// Returns the value of each byte: the byte itself, because npy data are not scaled.
kernels::ByteValues ValuesOfBytes() {
  kernels::ByteValues values;
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

template <typename From, typename To>
void Convert(const std::byte* from, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof(value));
    const To converted = static_cast<To>(value);
    std::memcpy(to + i * sizeof(To), &converted, sizeof(converted));
  }
}

template <typename To>
void ConvertTo(NpyType type, const std::byte* from, std::byte* to, int64_t count) {
  switch (type) {
    case NpyType::kF32:
      return Convert<float, To>(from, to, count);
    case NpyType::kF64:
      return Convert<double, To>(from, to, count);
    case NpyType::kI32:
      return Convert<int32_t, To>(from, to, count);
    case NpyType::kI64:
      return Convert<int64_t, To>(from, to, count);
    case NpyType::kU8:
      return Convert<uint8_t, To>(from, to, count);
  }
}

class NpyDataset : public Dataset {
 public:
  // The first `samples` of `all` are for training, the others are held out.
  NpyDataset(std::vector<Column> columns, int64_t samples, int64_t all)
      : columns_(std::move(columns)), samples_(samples), all_(all) {}

  int64_t samples() const override { return samples_; }
  int64_t evaluation_samples() const override { return all_ - samples_; }

  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    if (!columns_[input].is_bytes()) return {};
    return absl::MakeConstSpan(&values_, 1);
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CheckSizes(samples.size(), rows);
    for (size_t row = 0; row < samples.size(); ++row) {
      const int64_t sample = samples[row].sample;
      CHECK(0 <= sample && sample < samples_) << sample;
      CopySamples(sample, 1, row, rows);
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CheckSizes(count, rows);
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    CopySamples(samples_ + first, count, 0, rows);
    return absl::OkStatus();
  }

 private:
  void CheckSizes(size_t count, Rows rows) const {
    CHECK_EQ(rows.size(), columns_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i].empty() || rows[i].size() == count * columns_[i].row_bytes());
    }
  }

  void CopySamples(int64_t first, int64_t count, size_t to_row, Rows rows) const {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].empty()) continue;
      const Column& column = columns_[i];
      const NpyType type = column.file.type();
      const std::byte* from =
          column.file.data().data() + first * column.row_elements * NpyTypeBytes(type);
      std::byte* to = rows[i].data() + to_row * column.row_bytes();
      if (column.is_bytes()) {
        std::memcpy(to, from, count * column.row_bytes());
      } else if (column.dtype == v1::DTYPE_F32) {
        ConvertTo<float>(type, from, to, count * column.row_elements);
      } else {
        ConvertTo<int32_t>(type, from, to, count * column.row_elements);
      }
    }
  }

  const kernels::ByteValues values_ = ValuesOfBytes();
  const std::vector<Column> columns_;  // by graph input
  const int64_t samples_;
  const int64_t all_;
};

std::string FieldOf(const std::string& input) { return absl::StrCat("data.npy.inputs.", input); }

absl::Status CheckShape(const NpyFile& file, const v1::GraphInput& input, const std::string& path) {
  const std::vector<int64_t>& shape = file.shape();
  const bool fits = std::ssize(shape) == input.shape_size() && !shape.empty() &&
                    std::equal(shape.begin() + 1, shape.end(), input.shape().begin() + 1);
  if (!fits) {
    return DataInvalid(
        FieldOf(input.name()),
        absl::StrCat(path, ": [", absl::StrJoin(shape, ", "), "] but the model's ", input.name(),
                     " is [", absl::StrJoin(input.shape(), ", "), "], the first for the samples"));
  }
  if (shape[0] == 0) {
    return DataTooSmall(FieldOf(input.name()), absl::StrCat(path, ": holds no sample"));
  }
  if (input.dtype() == v1::DTYPE_I32 && !IsInteger(file.type())) {
    return DataInvalid(FieldOf(input.name()),
                       absl::StrCat(path, ": ", NpyTypeName(file.type()), " but the model's ",
                                    input.name(), " are ids: save array.astype('<i4')"));
  }
  return absl::OkStatus();
}

// Checks that the model accepts every id, and that it fits i32.
template <typename Id>
absl::Status CheckIds(absl::Span<const std::byte> data, int64_t row_elements, const InputUse& use,
                      const std::string& input, const std::string& path) {
  for (size_t i = 0; i < data.size() / sizeof(Id); ++i) {
    Id id;
    std::memcpy(&id, data.data() + i * sizeof(Id), sizeof(id));
    if (use.Takes(id) && id >= std::numeric_limits<int32_t>::min() &&
        id <= std::numeric_limits<int32_t>::max()) {
      continue;
    }
    const int64_t lowest = std::max<int64_t>(use.lowest, std::numeric_limits<int32_t>::min());
    const int64_t limit =
        std::min<int64_t>(use.limit, int64_t{std::numeric_limits<int32_t>::max()} + 1);
    return DataInvalid(FieldOf(input),
                       absl::StrCat(path, ": ", id, " in row ", i / row_elements,
                                    "; the model takes ", lowest, " to ", limit - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const Column& column, const InputUse& use, const std::string& input,
                      const std::string& path) {
  if (column.dtype != v1::DTYPE_I32) return absl::OkStatus();
  const absl::Span<const std::byte> data = column.file.data();
  switch (column.file.type()) {
    case NpyType::kI32:
      return CheckIds<int32_t>(data, column.row_elements, use, input, path);
    case NpyType::kI64:
      return CheckIds<int64_t>(data, column.row_elements, use, input, path);
    case NpyType::kU8:
      return CheckIds<uint8_t>(data, column.row_elements, use, input, path);
    case NpyType::kF32:
    case NpyType::kF64:
      break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Column> OpenColumn(const v1::NpyData& npy, const v1::GraphInput& input,
                                  const InputUse& use, int64_t& bytes_left) {
  const auto path = npy.inputs().find(input.name());
  if (path == npy.inputs().end()) {
    return DataInvalid(FieldOf(input.name()),
                       absl::StrCat("required: a file for the model's ", input.name(), ", [",
                                    absl::StrJoin(input.shape(), ", "), "]"));
  }
  ASSIGN_OR_RETURN(NpyFile file, NpyFile::Open(path->second, FieldOf(input.name())));
  RETURN_IF_ERROR(CheckShape(file, input, path->second));
  Column column{std::move(file), input.dtype(), RowBytes(input) / 4};
  if (column.dtype == v1::DTYPE_I32) {
    const int64_t bytes = std::ssize(column.file.data());
    if (bytes > bytes_left) return DataTooLarge(FieldOf(input.name()), path->second, bytes_left);
    bytes_left -= bytes;
  }
  RETURN_IF_ERROR(CheckIds(column, use, input.name(), path->second));
  return column;
}

absl::Status CheckNames(const v1::NpyData& npy, const v1::Graph& graph) {
  for (const auto& [name, path] : npy.inputs()) {
    if (FindInput(graph, name) != nullptr) continue;
    std::vector<std::string> known;
    for (const v1::GraphInput& input : graph.inputs()) known.push_back(input.name());
    return DataInvalid(FieldOf(name), absl::StrCat("the model has no such input; it reads ",
                                                   absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenNpyDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              int64_t held_bytes_max) {
  const v1::NpyData& npy = spec.npy();
  if (!(npy.holdout() >= 0 && npy.holdout() <= 0.5)) {
    return DataInvalid("data.npy.holdout",
                       absl::StrCat("must be in [0, 0.5] (is ", npy.holdout(), ")"));
  }
  RETURN_IF_ERROR(CheckNames(npy, graph));
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  std::vector<Column> columns;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    ASSIGN_OR_RETURN(Column column, OpenColumn(npy, graph.inputs(i), uses[i], held_bytes_max));
    columns.push_back(std::move(column));
    const int64_t rows = columns.back().file.shape()[0], first = columns[0].file.shape()[0];
    if (rows != first) {
      return DataInvalid(
          FieldOf(graph.inputs(i).name()),
          absl::StrCat(rows, " samples, but ", graph.inputs(0).name(), " has ", first));
    }
  }
  if (columns.empty()) return DataInvalid("data.npy", "the model reads no data");
  const int64_t all = columns[0].file.shape()[0];
  const int64_t samples = all - std::llround(all * npy.holdout());
  if (samples < 1) {
    return DataTooSmall("data.npy.holdout", absl::StrCat("leaves none of ", all, " to train on"));
  }
  return std::make_unique<NpyDataset>(std::move(columns), samples, all);
}

}  // namespace muster
