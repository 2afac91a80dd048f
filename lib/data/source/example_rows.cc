#include "lib/data/source/example_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr double kFillDefault = -100;
constexpr double kIntegerMax = 1 << 30;  // of an offset, so that no sum overflows

std::string InputField(const std::string& input) {
  return absl::StrCat("data.tfrecord.inputs.", input);
}

bool IsIntegral(double value) {
  return std::abs(value) <= kIntegerMax && std::floor(value) == value;
}

template <typename Number>
void StoreAll(Number value, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * sizeof(value), &value, sizeof(value));
}

// Writes `value` to `count` elements of a column.
void StoreRest(bool is_f32, double value, int64_t count, std::byte* to) {
  if (is_f32) return StoreAll(static_cast<float>(value), count, to);
  StoreAll(static_cast<int32_t>(value), count, to);
}

// Returns memory for `count` numbers. Its content is undefined.
template <typename Number>
absl::Span<Number> Memory(std::vector<Number>& memory, int64_t count) {
  if (std::ssize(memory) < count) memory.resize(count);
  return absl::MakeSpan(memory).first(count);
}

}  // namespace

struct ExampleRows::Scratch {
  std::vector<Feature> found;
  std::vector<int64_t> integers, positions, weights;
  std::vector<float> floats;
  std::vector<std::byte> row;
};

int ExampleRows::Want(const std::string& feature, const std::string& otherwise, std::string field,
                      bool is_needed) {
  const std::string& name = feature.empty() ? otherwise : feature;
  for (size_t i = 0; i < features_.size(); ++i) {
    if (features_[i].name != name) continue;
    features_[i].is_needed |= is_needed;
    return static_cast<int>(i);
  }
  features_.push_back({name, std::move(field), is_needed});
  return static_cast<int>(features_.size()) - 1;
}

absl::StatusOr<ExampleRows::Column> ExampleRows::MakeColumn(const v1::DataSpec& spec,
                                                            const v1::GraphInput& input,
                                                            const InputUse& use,
                                                            const MakeImageRows& make_images) {
  const std::string field = InputField(input.name());
  const auto rule = spec.tfrecord().inputs().find(input.name());
  if (rule == spec.tfrecord().inputs().end()) {
    return DataInvalid(field, absl::StrCat("required: the feature of the model's ", input.name(),
                                           ", [", absl::StrJoin(input.shape(), ", "), "]"));
  }
  Column column{
      .name = input.name(),
      .is_f32 = input.dtype() == v1::DTYPE_F32,
      .elements = RowBytes(input) / 4,
      .use = use,
      .lowest = std::max<int64_t>(use.lowest, std::numeric_limits<int32_t>::min()),
      .limit = std::min<int64_t>(use.limit, int64_t{std::numeric_limits<int32_t>::max()} + 1)};
  std::string rest_field;
  switch (rule->second.kind_case()) {
    case v1::ExampleInput::KIND_NOT_SET:
    case v1::ExampleInput::kFixed: {
      const v1::FixedFeature& fixed = rule->second.fixed();
      column.feature = Want(fixed.feature(), input.name(), field);
      column.offset = fixed.offset();
      if (!std::isfinite(column.offset) || (!column.is_f32 && !IsIntegral(column.offset))) {
        return DataInvalid(absl::StrCat(field, ".fixed.offset"),
                           absl::StrCat("must be an integer up to 2^30, because the model's ",
                                        input.name(), " are ids (is ", column.offset, ")"));
      }
      return column;
    }
    case v1::ExampleInput::kVariable:
      column.rule = Rule::kVariable;
      column.feature = Want(rule->second.variable().feature(), input.name(), field,
                            /*is_needed=*/false);
      column.rest = rule->second.variable().pad();
      rest_field = absl::StrCat(field, ".variable.pad");
      break;
    case v1::ExampleInput::kScatter: {
      const v1::ScatterFeature& scatter = rule->second.scatter();
      column.rule = Rule::kScatter;
      for (const auto& [name, value] :
           {std::pair{"positions", &scatter.positions()}, {"values", &scatter.values()}}) {
        if (!value->empty()) continue;
        return DataInvalid(absl::StrCat(field, ".scatter.", name), "required: name of a feature");
      }
      column.positions = Want(scatter.positions(), "", absl::StrCat(field, ".scatter.positions"));
      column.feature = Want(scatter.values(), "", absl::StrCat(field, ".scatter.values"));
      if (!scatter.weights().empty()) {
        column.weights = Want(scatter.weights(), "", absl::StrCat(field, ".scatter.weights"));
      }
      column.rest = scatter.has_fill() ? scatter.fill() : kFillDefault;
      rest_field = absl::StrCat(field, ".scatter.fill");
      break;
    }
    case v1::ExampleInput::kImage: {
      column.rule = Rule::kImage;
      column.feature = Want(rule->second.image().feature(), input.name(), field);
      if (!column.is_f32 || input.shape_size() != 4) {
        return DataInvalid(
            absl::StrCat(field, ".image"),
            absl::StrCat("an image fills an input f32[-1, channels, height, width], but the "
                         "model's ",
                         input.name(), " is [", absl::StrJoin(input.shape(), ", "), "]"));
      }
      if (!make_images) {
        return DataInvalid(absl::StrCat(field, ".image"), "this process decodes no images");
      }
      ASSIGN_OR_RETURN(
          column.images,
          make_images(spec.image(), spec.seed(), static_cast<int>(input.shape(1)),
                      static_cast<int>(input.shape(2)), static_cast<int>(input.shape(3))));
      return column;
    }
  }
  if (!column.is_f32 &&
      !(IsIntegral(column.rest) && use.Takes(static_cast<int64_t>(column.rest)))) {
    return DataInvalid(rest_field, absl::StrCat("is ", column.rest, ", but the model's ",
                                                input.name(), " takes ", muster::ToText(use)));
  }
  return column;
}

absl::StatusOr<std::unique_ptr<const ExampleRows>> ExampleRows::Create(
    const v1::DataSpec& spec, const v1::Graph& graph, const MakeImageRows& make_images) {
  for (const auto& [name, rule] : spec.tfrecord().inputs()) {
    if (FindInput(graph, name) != nullptr) continue;
    std::vector<std::string> known;
    for (const v1::GraphInput& input : graph.inputs()) known.push_back(input.name());
    return DataInvalid(InputField(name), absl::StrCat("the model has no such input; it reads ",
                                                      absl::StrJoin(known, ", ")));
  }
  if (graph.inputs().empty()) return DataInvalid("data.tfrecord", "the model reads no data");
  std::unique_ptr<ExampleRows> rows(new ExampleRows());
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  for (int i = 0; i < graph.inputs_size(); ++i) {
    ASSIGN_OR_RETURN(Column column, rows->MakeColumn(spec, graph.inputs(i), uses[i], make_images));
    if (uses[i].ignore_index && !column.is_f32) rows->counted_inputs_.push_back(i);
    rows->columns_.push_back(std::move(column));
  }
  std::vector<std::string> names;
  for (const WantedFeature& feature : rows->features_) names.push_back(feature.name);
  rows->finder_.emplace(std::move(names));
  return rows;
}

int64_t ExampleRows::row_bytes(int input) const {
  const Column& column = columns_[input];
  return column.elements * (column.images == nullptr ? 4 : 1);
}

absl::Span<const kernels::ByteValues> ExampleRows::row_values(int input) const {
  const Column& column = columns_[input];
  if (column.images == nullptr) return {};
  return column.images->values();
}

bool ExampleRows::has_images() const {
  return std::ranges::any_of(columns_,
                             [](const Column& column) { return column.images != nullptr; });
}

std::string ExampleRows::DescribeCounted() const {
  std::string text;
  for (const int input : counted_inputs_) {
    const Column& column = columns_[input];
    absl::StrAppend(&text, "input ", static_cast<int>(column.rule), " ", column.elements, " ",
                    column.use.lowest, " ", column.use.limit, " ", *column.use.ignore_index, " ",
                    column.offset, " ", column.rest);
    for (const int feature : {column.feature, column.positions, column.weights}) {
      const std::string name = feature < 0 ? "" : features_[feature].name;
      absl::StrAppend(&text, " ", name.size(), ":", name);
    }
    text += "\n";
  }
  return text;
}

absl::Status ExampleRows::At(int feature, const absl::Status& status) const {
  return Annotate(status, absl::StrCat("feature '", features_[feature].name, "'"));
}

absl::Status ExampleRows::AtFault(int feature, absl::string_view message) const {
  return At(feature, absl::InvalidArgumentError(message));
}

absl::Status ExampleRows::Store(const Column& column, absl::Span<const int64_t> integers,
                                std::byte* to, int64_t first) const {
  if (column.is_f32) {
    for (size_t i = 0; i < integers.size(); ++i) {
      const auto value = static_cast<float>(static_cast<double>(integers[i]) + column.offset);
      std::memcpy(to + i * sizeof(value), &value, sizeof(value));
    }
    return absl::OkStatus();
  }
  const int64_t lowest = column.lowest, limit = column.limit;
  const int64_t ignored = column.use.ignore_index.value_or(lowest);
  const auto offset = static_cast<uint64_t>(static_cast<int64_t>(column.offset));
  const auto count = static_cast<uint64_t>(limit - lowest);
  bool are_valid = true;
  for (size_t i = 0; i < integers.size(); ++i) {
    const uint64_t id = static_cast<uint64_t>(integers[i]) + offset;  // unsigned: it may overflow
    are_valid &=
        (id - static_cast<uint64_t>(lowest) < count) | (id == static_cast<uint64_t>(ignored));
    const auto narrow = static_cast<int32_t>(id);
    std::memcpy(to + i * sizeof(narrow), &narrow, sizeof(narrow));
  }
  if (are_valid) return absl::OkStatus();
  for (size_t i = 0; i < integers.size(); ++i) {
    const auto id = static_cast<int64_t>(static_cast<uint64_t>(integers[i]) + offset);
    if ((lowest <= id && id < limit) || id == ignored) continue;
    return AtFault(
        column.feature,
        absl::StrCat("number ", first + i, " is ", integers[i],
                     column.offset == 0 ? "" : absl::StrCat(", with the offset ", id),
                     "; the model's ", column.name, " takes ", lowest, " to ", limit - 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ExampleRows::StoreList(const Column& column, Scratch& scratch,
                                               std::byte* to) const {
  const Feature& feature = scratch.found[column.feature];
  if (!column.is_f32 && column.offset == 0) {
    // Most ids are small and valid, and need no number of 64 bits between.
    const absl::Span<int32_t> ids(reinterpret_cast<int32_t*>(to), column.elements);
    const absl::StatusOr<SmallIntegers> read = ReadSmallIntegers(feature, ids);
    if (!read.ok()) return At(column.feature, read.status());
    const auto lowest = static_cast<uint32_t>(column.lowest);
    const auto values = static_cast<uint32_t>(column.limit - column.lowest - 1);
    const int64_t filled = std::min(read->count, column.elements);
    bool are_valid = read->fit && column.lowest < column.limit;
    for (int64_t i = 0; i < filled; ++i) {
      are_valid &= static_cast<uint32_t>(ids[i]) - lowest <= values;
    }
    if (are_valid) return read->count;
  }
  const absl::Span<int64_t> integers = Memory(scratch.integers, column.elements);
  const absl::StatusOr<int64_t> count = ReadIntegers(feature, integers);
  if (!count.ok()) return At(column.feature, count.status());
  RETURN_IF_ERROR(Store(column, integers.first(std::min(*count, column.elements)), to));
  return count;
}

absl::Status ExampleRows::FillFixed(const Column& column, Scratch& scratch, std::byte* to) const {
  const Feature& feature = scratch.found[column.feature];
  auto wrong_count = [&](int64_t count, absl::string_view unit) {
    return AtFault(column.feature, absl::StrCat("has ", count, " ", unit, "; the model's ",
                                                column.name, " takes ", column.elements));
  };
  switch (feature.kind) {
    case Feature::Kind::kIntegers: {
      ASSIGN_OR_RETURN(const int64_t count, StoreList(column, scratch, to));
      return count == column.elements ? absl::OkStatus() : wrong_count(count, "integers");
    }
    case Feature::Kind::kFloats: {
      if (!column.is_f32) {
        return AtFault(column.feature,
                       absl::StrCat("holds floats, but the model's ", column.name, " are ids"));
      }
      const absl::Span<float> floats(reinterpret_cast<float*>(to), column.elements);
      const absl::StatusOr<int64_t> count = ReadFloats(feature, floats);
      if (!count.ok()) return At(column.feature, count.status());
      if (*count != column.elements) return wrong_count(*count, "floats");
      if (column.offset != 0) {
        for (float& value : floats) value = static_cast<float>(value + column.offset);
      }
      return absl::OkStatus();
    }
    case Feature::Kind::kBytes: {
      const absl::StatusOr<absl::Span<const std::byte>> bytes = ReadBytes(feature);
      if (!bytes.ok()) return At(column.feature, bytes.status());
      const auto size = std::ssize(*bytes);
      if (size == column.elements) {  // u8
        const absl::Span<int64_t> integers = Memory(scratch.integers, column.elements);
        for (int64_t i = 0; i < size; ++i) integers[i] = std::to_integer<int64_t>((*bytes)[i]);
        return Store(column, integers, to);
      }
      if (size != 4 * column.elements) {
        return wrong_count(size, "bytes");
      }
      if (!column.is_f32) {
        const absl::Span<int64_t> integers = Memory(scratch.integers, column.elements);
        for (int64_t i = 0; i < column.elements; ++i) {
          int32_t id;
          std::memcpy(&id, bytes->data() + i * sizeof(id), sizeof(id));
          integers[i] = id;
        }
        return Store(column, integers, to);
      }
      std::memcpy(to, bytes->data(), size);
      if (column.offset == 0) return absl::OkStatus();
      for (float& value : absl::MakeSpan(reinterpret_cast<float*>(to), column.elements)) {
        value = static_cast<float>(value + column.offset);
      }
      return absl::OkStatus();
    }
    case Feature::Kind::kMissing:
    case Feature::Kind::kNoList:
      break;
  }
  return AtFault(column.feature, absl::StrCat("is ", muster::ToText(feature.kind), "; the model's ",
                                              column.name, " takes ", column.elements, " numbers"));
}

absl::Status ExampleRows::FillVariable(const Column& column, Scratch& scratch,
                                       std::byte* to) const {
  const Feature& feature = scratch.found[column.feature];
  int64_t filled = 0;
  if (feature.kind == Feature::Kind::kIntegers) {
    ASSIGN_OR_RETURN(const int64_t count, StoreList(column, scratch, to));
    filled = std::min(count, column.elements);
  } else if (feature.kind == Feature::Kind::kFloats && column.is_f32) {
    const absl::StatusOr<int64_t> count =
        ReadFloats(feature, absl::MakeSpan(reinterpret_cast<float*>(to), column.elements));
    if (!count.ok()) return At(column.feature, count.status());
    filled = std::min(*count, column.elements);
  } else if (feature.kind == Feature::Kind::kFloats || feature.kind == Feature::Kind::kBytes) {
    return AtFault(column.feature,
                   absl::StrCat("holds ", muster::ToText(feature.kind), ", but the model's ",
                                column.name, " takes ", column.is_f32 ? "numbers" : "ids"));
  }
  // Writers omit an empty list, or its feature.
  StoreRest(column.is_f32, column.rest, column.elements - filled, to + filled * 4);
  return absl::OkStatus();
}

absl::Status ExampleRows::FillScatter(const Column& column, Scratch& scratch, std::byte* to) const {
  // Reads a list of numbers as integers. Weights of a fraction count, too.
  auto read = [&](int index, std::vector<int64_t>& memory) -> absl::StatusOr<int64_t> {
    const Feature& feature = scratch.found[index];
    const absl::Span<int64_t> integers = Memory(memory, column.elements);
    absl::StatusOr<int64_t> count = 0;
    if (feature.kind == Feature::Kind::kIntegers) {
      count = ReadIntegers(feature, integers);
    } else if (feature.kind == Feature::Kind::kFloats && index == column.weights) {
      const absl::Span<float> floats = Memory(scratch.floats, column.elements);
      count = ReadFloats(feature, floats);
      const int64_t read = std::min(count.value_or(0), column.elements);
      for (int64_t i = 0; i < read; ++i) integers[i] = floats[i] != 0;
    } else {
      return AtFault(index, absl::StrCat("is ", muster::ToText(feature.kind),
                                         ", but a list of integers is needed"));
    }
    if (!count.ok()) return At(index, count.status());
    if (*count > column.elements) {
      return AtFault(index, absl::StrCat("has ", *count, " numbers, more than the ",
                                         column.elements, " of the model's ", column.name));
    }
    return *count;
  };
  auto same = [&](int index, int64_t count, int64_t positions) {
    if (count == positions) return absl::OkStatus();
    return AtFault(index, absl::StrCat("has ", count, " numbers for the ", positions, " of '",
                                       features_[column.positions].name, "'"));
  };
  ASSIGN_OR_RETURN(const int64_t count, read(column.positions, scratch.positions));
  const bool are_floats =
      column.is_f32 && scratch.found[column.feature].kind == Feature::Kind::kFloats;
  std::vector<float>& values = scratch.floats;
  if (column.weights >= 0) {
    ASSIGN_OR_RETURN(const int64_t weights, read(column.weights, scratch.weights));
    RETURN_IF_ERROR(same(column.weights, weights, count));
  }
  if (are_floats) {
    const absl::StatusOr<int64_t> floats =
        ReadFloats(scratch.found[column.feature], Memory(values, column.elements));
    if (!floats.ok()) return At(column.feature, floats.status());
    RETURN_IF_ERROR(same(column.feature, *floats, count));
  } else {
    ASSIGN_OR_RETURN(const int64_t integers, read(column.feature, scratch.integers));
    RETURN_IF_ERROR(same(column.feature, integers, count));
  }
  StoreRest(column.is_f32, column.rest, column.elements, to);
  for (int64_t i = 0; i < count; ++i) {
    if (column.weights >= 0 && scratch.weights[i] == 0) continue;
    const int64_t position = scratch.positions[i];
    if (position < 0 || position >= column.elements) {
      return AtFault(column.positions, absl::StrCat("number ", i, " is ", position,
                                                    "; positions are 0 to ", column.elements - 1));
    }
    std::byte* const element = to + position * 4;
    if (are_floats) {
      std::memcpy(element, &values[i], sizeof(float));
    } else {
      RETURN_IF_ERROR(Store(column, absl::MakeConstSpan(&scratch.integers[i], 1), element, i));
    }
  }
  return absl::OkStatus();
}

absl::Status ExampleRows::FillImage(const Column& column, SampleRef sample, Use use,
                                    const Scratch& scratch, absl::Span<std::byte> to) const {
  const Feature& feature = scratch.found[column.feature];
  if (feature.kind != Feature::Kind::kBytes) {
    return AtFault(column.feature, absl::StrCat("is ", muster::ToText(feature.kind),
                                                ", but the bytes of an image are needed"));
  }
  const absl::StatusOr<absl::Span<const std::byte>> file = ReadBytes(feature);
  if (!file.ok()) return At(column.feature, file.status());
  const absl::Span<uint8_t> pixels(reinterpret_cast<uint8_t*>(to.data()), to.size());
  return At(column.feature, use == Use::kTraining ? column.images->Training(*file, sample, pixels)
                                                  : column.images->Evaluation(*file, pixels));
}

absl::Status ExampleRows::FillColumn(const Column& column, SampleRef sample, Use use,
                                     Scratch& scratch, absl::Span<std::byte> to) const {
  switch (column.rule) {
    case Rule::kFixed:
      return FillFixed(column, scratch, to.data());
    case Rule::kVariable:
      return FillVariable(column, scratch, to.data());
    case Rule::kScatter:
      return FillScatter(column, scratch, to.data());
    case Rule::kImage:
      return FillImage(column, sample, use, scratch, to);
  }
  return absl::OkStatus();
}

absl::Status ExampleRows::Fill(absl::Span<const std::byte> example, SampleRef sample, Use use,
                               int64_t row, Dataset::Rows rows) const {
  static thread_local Scratch scratch;
  RETURN_IF_ERROR(
      finder_->Find(example, Memory(scratch.found, static_cast<int64_t>(features_.size()))));
  for (int i = 0; i < inputs(); ++i) {
    if (rows[i].empty()) continue;
    const int64_t bytes = row_bytes(i);
    RETURN_IF_ERROR(
        FillColumn(columns_[i], sample, use, scratch, rows[i].subspan(row * bytes, bytes)));
  }
  return absl::OkStatus();
}

absl::Status ExampleRows::CountTargets(absl::Span<const std::byte> example,
                                       std::vector<int32_t>& counts) const {
  static thread_local Scratch scratch;
  RETURN_IF_ERROR(
      finder_->Find(example, Memory(scratch.found, static_cast<int64_t>(features_.size()))));
  for (const int input : counted_inputs_) {
    const absl::Span<std::byte> row = Memory(scratch.row, row_bytes(input));
    RETURN_IF_ERROR(FillColumn(columns_[input], {}, Use::kEvaluation, scratch, row));
    counts.push_back(
        static_cast<int32_t>(muster::CountTargets(columns_[input].use, absl::MakeConstSpan(row))));
  }
  return absl::OkStatus();
}

absl::Status ExampleRows::Note(absl::Span<const std::byte> example, std::vector<bool>& seen) const {
  std::vector<Feature> found(features_.size());
  RETURN_IF_ERROR(finder_->Find(example, absl::MakeSpan(found)));
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].kind != Feature::Kind::kMissing) seen[i] = true;
  }
  return absl::OkStatus();
}

}  // namespace muster
