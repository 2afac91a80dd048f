#include "lib/data/source/csv_columns.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/data/data_fault.h"
#include "lib/data/dataset.h"
#include "lib/data/file/data_file.h"
#include "lib/data/fingerprint.h"
#include "lib/data/format/compression.h"
#include "lib/data/format/farm_fingerprint.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kIdLimit = int64_t{1} << 31;
constexpr size_t kNamesShown = 20;

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(text.substr(0, 40)), "'");
}

// Returns log(1 + max(value, 0)). Most counts are small, and the function takes longer than all
// else that is done for a number.
double LogOfCount(double value) {
  constexpr int kKnown = 1024;
  static const auto* const known = [] {
    auto* logs = new std::array<double, kKnown>;
    for (int i = 0; i < kKnown; ++i) (*logs)[i] = std::log1p(i);
    return logs;
  }();
  if (!(value > 0)) return 0;
  const int whole = value < kKnown ? static_cast<int>(value) : -1;
  return whole == value ? (*known)[whole] : std::log1p(value);
}

std::optional<CsvFault> RangeFault(int column, absl::string_view value, const InputUse& use) {
  return CsvFault{
      column, absl::StrCat(value, "; the model takes ",
                           use.is_probability || use.is_bounded() ? ToText(use)
                                                                  : "whole numbers of 32 bits")};
}

template <typename T>
void Store(T value, std::byte* to, size_t i) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

std::optional<CsvFault> FillNumbers(const CsvColumns& input, const CsvColumns::Number& rule,
                                    const std::vector<absl::string_view>& fields, std::byte* to) {
  for (size_t i = 0; i < input.columns.size(); ++i) {
    const int column = input.columns[i];
    const absl::string_view text = fields[column];
    double value = rule.missing;
    if (!text.empty()) {
      const std::optional<double> number = ParseCsvNumber(text);
      if (!number) return CsvFault{column, absl::StrCat(Shown(text), " is no number")};
      value = *number;
    }
    if (rule.is_log) value = LogOfCount(value);
    value = value * rule.scale + rule.offset;
    if (input.dtype == v1::DTYPE_F32) {
      if (input.use.is_probability && !(value >= 0 && value <= 1)) {
        return RangeFault(column, absl::StrCat(value), input.use);
      }
      if (std::abs(value) > std::numeric_limits<float>::max()) {
        return CsvFault{column, absl::StrCat(value, " is too large")};
      }
      Store(static_cast<float>(value), to, i);
      continue;
    }
    const bool is_whole = std::abs(value) <= kIdLimit && value == std::floor(value);
    const int64_t id = is_whole ? static_cast<int64_t>(value) : kIdLimit;
    if (id < -kIdLimit || id >= kIdLimit || !input.use.Takes(id)) {
      return RangeFault(column, absl::StrCat(value), input.use);
    }
    Store(static_cast<int32_t>(id), to, i);
  }
  return std::nullopt;
}

std::optional<CsvFault> FillHashes(const CsvColumns& input, const CsvColumns::Hash& rule,
                                   const std::vector<absl::string_view>& fields, std::byte* to) {
  const int64_t step = rule.is_per_column ? rule.buckets : 0;
  for (size_t i = 0; i < input.columns.size(); ++i) {
    const uint64_t bucket = FarmFingerprint(fields[input.columns[i]]) % rule.buckets;
    Store(static_cast<int32_t>(bucket + step * i), to, i);
  }
  return std::nullopt;
}

std::optional<CsvFault> FillIds(const CsvColumns& input, const CsvColumns::Vocabulary& rule,
                                const std::vector<absl::string_view>& fields, std::byte* to) {
  for (size_t i = 0; i < input.columns.size(); ++i) {
    const int column = input.columns[i];
    const auto id = rule.ids.find(fields[column]);
    if (id == rule.ids.end() && !rule.unknown) {
      return CsvFault{column, absl::StrCat(Shown(fields[column]), " is not in the vocabulary")};
    }
    Store(id == rule.ids.end() ? *rule.unknown : id->second, to, i);
  }
  return std::nullopt;
}

// Appends the columns that `text` names, or numbers from 1.
absl::Status AddColumns(const std::string& text, const CsvLayout& layout, const std::string& field,
                        std::vector<int>& columns) {
  const auto count = std::count(layout.names.begin(), layout.names.end(), text);
  if (count > 1) {
    return DataInvalid(
        field, absl::StrCat(count, " columns have the name ", Shown(text), "; use their numbers"));
  }
  if (count == 1) {
    columns.push_back(std::find(layout.names.begin(), layout.names.end(), text) -
                      layout.names.begin());
    return absl::OkStatus();
  }
  const std::string hint = layout.columns > 1
                               ? ""
                               : absl::StrCat("; the separator is ",
                                              Shown(absl::string_view(&layout.format.separator, 1)),
                                              ", and data.csv.separator names another one");
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  int first = 0, last = 0;
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
      !absl::SimpleAtoi(ends.back(), &last)) {
    std::vector<std::string> names;
    for (const std::string& name : layout.names) {
      if (names.size() < kNamesShown) names.push_back(Shown(name));
    }
    return DataInvalid(
        field, absl::StrCat("no column has the name ", Shown(text),
                            names.empty()
                                ? "; without a header, use numbers from 1"
                                : absl::StrCat("; there are ", absl::StrJoin(names, ", "),
                                               layout.names.size() > names.size() ? ", ..." : ""),
                            hint));
  }
  if (last < first) {
    return DataInvalid(field, absl::StrCat(Shown(text), ": a range begins with its lower number"));
  }
  if (first < 1 || last > static_cast<int64_t>(layout.columns)) {
    return DataInvalid(field,
                       absl::StrCat(Shown(text), ": columns are 1 to ", layout.columns, hint));
  }
  for (int column = first; column <= last; ++column) columns.push_back(column - 1);
  return absl::OkStatus();
}

absl::Status CheckIdLimit(const InputUse& use, int64_t limit, const std::string& field,
                          absl::string_view what) {
  if (limit <= std::min(kIdLimit, use.limit) && use.lowest <= 0) return absl::OkStatus();
  return DataInvalid(field, absl::StrCat(what, " give ids up to ", limit - 1, "; the model takes ",
                                         use.is_bounded() ? ToText(use) : "ids of 31 bits"));
}

// The memory of a word of a vocabulary beside its bytes: two strings and an entry of a hash table.
constexpr int64_t kBytesOfWord = 100;

absl::StatusOr<CsvColumns::Vocabulary> ReadVocabulary(const v1::CsvVocabulary& vocabulary,
                                                      const InputUse& use, const std::string& field,
                                                      int64_t& bytes_left) {
  const std::string path_field = absl::StrCat(field, ".path");
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(vocabulary.path(), path_field));
  RETURN_IF_ERROR(CheckUncompressed(*file, path_field));
  if (file->bytes() > bytes_left) return DataTooLarge(path_field, file->path(), bytes_left);
  const int64_t bytes_max = bytes_left;
  bytes_left -= file->bytes();
  if (file->bytes() == 0) {
    return DataTooSmall(path_field, absl::StrCat(file->path(),
                                                 ": is empty; a vocabulary has a word on each "
                                                 "line"));
  }
  std::string text(file->bytes(), '\0');
  RETURN_IF_ERROR(
      file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  if (absl::EndsWith(text, "\n")) text.pop_back();
  CsvColumns::Vocabulary rule;
  std::vector<std::string> words;
  int64_t id = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    if (!rule.ids.emplace(line, static_cast<int32_t>(id)).second) {
      return DataInvalid(path_field, absl::StrCat(file->path(), ": line ", id + 1, ": ",
                                                  Shown(line), " is twice in the vocabulary"));
    }
    bytes_left -= kBytesOfWord + std::ssize(line);
    if (bytes_left < 0) return DataTooLarge(path_field, file->path(), bytes_max);
    words.emplace_back(line);
    ++id;
  }
  rule.fingerprint = FingerprintOf(words);
  RETURN_IF_ERROR(
      CheckIdLimit(use, id, path_field, absl::StrCat(file->path(), ": ", id, " lines")));
  if (!vocabulary.has_unknown()) return rule;
  if (!use.Takes(vocabulary.unknown()) || vocabulary.unknown() < 0 ||
      vocabulary.unknown() >= kIdLimit) {
    return DataInvalid(absl::StrCat(field, ".unknown"),
                       absl::StrCat(vocabulary.unknown(), "; the model takes ", ToText(use)));
  }
  rule.unknown = static_cast<int32_t>(vocabulary.unknown());
  return rule;
}

}  // namespace

std::string CsvLayout::NameOf(int column) const {
  const std::string name = names.empty() ? "" : absl::StrCat(" ", Shown(names[column]));
  return absl::StrCat("column ", column + 1, name);
}

std::optional<CsvFault> FillColumns(const CsvColumns& input,
                                    const std::vector<absl::string_view>& fields, std::byte* to) {
  if (const auto* rule = std::get_if<CsvColumns::Number>(&input.rule)) {
    return FillNumbers(input, *rule, fields, to);
  }
  if (const auto* rule = std::get_if<CsvColumns::Hash>(&input.rule)) {
    return FillHashes(input, *rule, fields, to);
  }
  return FillIds(input, std::get<CsvColumns::Vocabulary>(input.rule), fields, to);
}

absl::StatusOr<CsvColumns> OpenCsvColumns(const v1::CsvData& csv, const v1::GraphInput& input,
                                          const InputUse& use, const CsvLayout& layout,
                                          int64_t& bytes_left) {
  const std::string field = absl::StrCat("data.csv.inputs.", input.name());
  const int64_t elements = RowBytes(input) / 4;
  const auto found = csv.inputs().find(input.name());
  if (found == csv.inputs().end()) {
    return DataInvalid(field, absl::StrCat("required: columns for the model's ", input.name(),
                                           ", [", absl::StrJoin(input.shape(), ", "), "]"));
  }
  const v1::CsvInput& spec = found->second;
  CsvColumns columns{.dtype = input.dtype(), .use = use};
  const std::string columns_field = absl::StrCat(field, ".columns");
  for (const std::string& text : spec.columns()) {
    RETURN_IF_ERROR(AddColumns(text, layout, columns_field, columns.columns));
  }
  if (std::ssize(columns.columns) != elements) {
    return DataInvalid(columns_field,
                       absl::StrCat(columns.columns.size(), " columns for the ", elements,
                                    " elements of the model's ", input.name()));
  }
  if (spec.kind_case() != v1::CsvInput::kNumber && spec.kind_case() != v1::CsvInput::KIND_NOT_SET &&
      input.dtype() != v1::DTYPE_I32) {
    return DataInvalid(field, absl::StrCat("categories are ids, but the model's ", input.name(),
                                           " is f32: use number"));
  }
  if (spec.has_hash()) {
    const int64_t buckets = spec.hash().buckets();
    const std::string buckets_field = absl::StrCat(field, ".hash.buckets");
    if (buckets < 1 || buckets > kIdLimit) {
      return DataInvalid(buckets_field, "must be between 1 and 2147483647");
    }
    columns.rule = CsvColumns::Hash{buckets, spec.hash().per_column()};
    RETURN_IF_ERROR(CheckIdLimit(use, buckets * (spec.hash().per_column() ? elements : 1),
                                 buckets_field, absl::StrCat(buckets, " buckets")));
  } else if (spec.has_vocabulary()) {
    ASSIGN_OR_RETURN(columns.rule, ReadVocabulary(spec.vocabulary(), use,
                                                  absl::StrCat(field, ".vocabulary"), bytes_left));
  } else {
    const v1::CsvNumber& number = spec.number();
    columns.rule = CsvColumns::Number{.missing = number.missing(),
                                      .scale = number.has_scale() ? number.scale() : 1,
                                      .offset = number.offset(),
                                      .is_log = number.log()};
  }
  return columns;
}

}  // namespace muster
