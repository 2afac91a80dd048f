#include "lib/data/source/csv_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/file/indexed_files.h"
#include "lib/data/file/record_index.h"
#include "lib/data/fingerprint.h"
#include "lib/data/format/compression.h"
#include "lib/data/format/csv.h"
#include "lib/data/format/farm_fingerprint.h"
#include "lib/data/input_use.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kIndexBytes = 12;                       // of a sample
constexpr int64_t kNeighbourBytesMax = int64_t{1} << 20;  // of lines that are read at once
constexpr int64_t kCountedBytesMax = int64_t{4} << 20;    // before a line whose number is shown
constexpr int64_t kIdLimit = int64_t{1} << 31;
constexpr size_t kColumnsMax = 1 << 16;
constexpr size_t kNamesShown = 20;

std::string Shown(absl::string_view text) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(text.substr(0, 40)), "'");
}

// Returns the names of the columns of Criteo's files, which have no header.
std::vector<std::string> CriteoColumns() {
  std::vector<std::string> names = {"label"};
  for (int i = 1; i <= 13; ++i) names.push_back(absl::StrCat("I", i));
  for (int i = 1; i <= 26; ++i) names.push_back(absl::StrCat("C", i));
  return names;
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

struct NumberRule {
  double missing, scale, offset;
  bool is_log;
};

struct HashRule {
  int64_t buckets;
  bool is_per_column;
};

struct VocabularyRule {
  absl::flat_hash_map<std::string, int32_t> ids;
  std::optional<int32_t> unknown;
  std::string fingerprint;  // of the words in their order
};

// A graph input, and the columns that fill it.
struct CsvColumns {
  std::vector<int> columns;  // from 0
  v1::DType dtype;
  InputUse use;
  std::variant<NumberRule, HashRule, VocabularyRule> rule;

  int64_t row_bytes() const { return std::ssize(columns) * 4; }
};

// A field of a line that does not fit.
struct ColumnFault {
  int column;
  std::string message;
};
using MaybeFault = std::optional<ColumnFault>;

MaybeFault RangeFault(int column, absl::string_view value, const InputUse& use) {
  return ColumnFault{
      column, absl::StrCat(value, "; the model takes ",
                           use.is_probability || use.is_bounded() ? ToText(use)
                                                                  : "whole numbers of 32 bits")};
}

template <typename T>
void Store(T value, std::byte* to, size_t i) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

MaybeFault FillNumbers(const CsvColumns& input, const NumberRule& rule,
                       const std::vector<absl::string_view>& fields, std::byte* to) {
  for (size_t i = 0; i < input.columns.size(); ++i) {
    const int column = input.columns[i];
    const absl::string_view text = fields[column];
    double value = rule.missing;
    if (!text.empty()) {
      const std::optional<double> number = ParseCsvNumber(text);
      if (!number) return ColumnFault{column, absl::StrCat(Shown(text), " is no number")};
      value = *number;
    }
    if (rule.is_log) value = LogOfCount(value);
    value = value * rule.scale + rule.offset;
    if (input.dtype == v1::DTYPE_F32) {
      if (input.use.is_probability && !(value >= 0 && value <= 1)) {
        return RangeFault(column, absl::StrCat(value), input.use);
      }
      if (std::abs(value) > std::numeric_limits<float>::max()) {
        return ColumnFault{column, absl::StrCat(value, " is too large")};
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

MaybeFault FillHashes(const CsvColumns& input, const HashRule& rule,
                      const std::vector<absl::string_view>& fields, std::byte* to) {
  const int64_t step = rule.is_per_column ? rule.buckets : 0;
  for (size_t i = 0; i < input.columns.size(); ++i) {
    const uint64_t bucket = FarmFingerprint(fields[input.columns[i]]) % rule.buckets;
    Store(static_cast<int32_t>(bucket + step * i), to, i);
  }
  return std::nullopt;
}

MaybeFault FillIds(const CsvColumns& input, const VocabularyRule& rule,
                   const std::vector<absl::string_view>& fields, std::byte* to) {
  for (size_t i = 0; i < input.columns.size(); ++i) {
    const int column = input.columns[i];
    const auto id = rule.ids.find(fields[column]);
    if (id == rule.ids.end() && !rule.unknown) {
      return ColumnFault{column, absl::StrCat(Shown(fields[column]), " is not in the vocabulary")};
    }
    Store(id == rule.ids.end() ? *rule.unknown : id->second, to, i);
  }
  return std::nullopt;
}

MaybeFault Fill(const CsvColumns& input, const std::vector<absl::string_view>& fields,
                std::byte* to) {
  if (const auto* rule = std::get_if<NumberRule>(&input.rule)) {
    return FillNumbers(input, *rule, fields, to);
  }
  if (const auto* rule = std::get_if<HashRule>(&input.rule)) {
    return FillHashes(input, *rule, fields, to);
  }
  return FillIds(input, std::get<VocabularyRule>(input.rule), fields, to);
}

// The columns that all files have.
struct CsvLayout {
  CsvFormat format;
  std::vector<std::string> names;  // empty: the columns have only numbers
  size_t columns = 0;

  std::string NameOf(int column) const {
    const std::string name = names.empty() ? "" : absl::StrCat(" ", Shown(names[column]));
    return absl::StrCat("column ", column + 1, name);
  }
};

// Files of lines, and where each line is.
struct CsvLines {
  std::string field;
  std::vector<IndexedFile> listed;
  std::shared_ptr<const RecordIndex> index;
  std::unique_ptr<const IndexedFiles> files;
};

// Returns "line 12, " for the line that begins at `offset`, or "" if too many bytes lie before it:
// a data set may have many damaged lines.
std::string LineNumber(const DataFile& file, int64_t offset) {
  if (offset > kCountedBytesMax) return "";
  std::byte piece[1 << 14];
  int64_t line = 1;
  for (int64_t at = 0; at < offset; at += sizeof(piece)) {
    const auto some = absl::MakeSpan(piece).first(std::min<int64_t>(sizeof(piece), offset - at));
    if (!file.Read(at, some).ok()) return "";
    line += std::count(some.begin(), some.end(), std::byte{'\n'});
  }
  return absl::StrCat("line ", line, ", ");
}

class CsvDataset : public Dataset {
 public:
  // The first `samples` of `training` are for training. The others are held out if there is no
  // `evaluation`.
  CsvDataset(CsvLayout layout, std::vector<CsvColumns> inputs, CsvLines training, int64_t samples,
             std::optional<CsvLines> evaluation)
      : layout_(std::move(layout)),
        inputs_(std::move(inputs)),
        training_(std::move(training)),
        samples_(samples),
        evaluation_(std::move(evaluation)) {}

  int64_t samples() const override { return samples_; }
  int64_t evaluation_samples() const override {
    return evaluation_ ? evaluation_->index->samples() : training_.index->samples() - samples_;
  }
  std::string fingerprint() const override {
    std::string all = training_.index->fingerprint();
    if (evaluation_) absl::StrAppend(&all, "-", evaluation_->index->fingerprint());
    std::vector<std::string> vocabularies;
    for (const CsvColumns& input : inputs_) {
      const auto* rule = std::get_if<VocabularyRule>(&input.rule);
      if (rule != nullptr) vocabularies.push_back(rule->fingerprint);
    }
    if (!vocabularies.empty()) absl::StrAppend(&all, "-", FingerprintOf(vocabularies));
    return all;
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CheckSizes(samples.size(), rows);
    for (size_t row = 0; row < samples.size();) {
      const int64_t sample = samples[row].sample;
      size_t run = 1;
      while (row + run < samples.size() &&
             samples[row + run].sample == sample + static_cast<int64_t>(run)) {
        ++run;
      }
      CHECK(0 <= sample && sample <= samples_ - static_cast<int64_t>(run)) << sample;
      RETURN_IF_ERROR(ReadLines(training_, sample, run, row, rows));
      row += run;
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CheckSizes(count, rows);
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    if (evaluation_) return ReadLines(*evaluation_, first, count, 0, rows);
    return ReadLines(training_, samples_ + first, count, 0, rows);
  }

 private:
  // Memory of a thread that reads.
  struct Scratch {
    std::string text;
    CsvSplitter splitter;
  };

  void CheckSizes(size_t count, Rows rows) const {
    CHECK_EQ(rows.size(), inputs_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i].empty() || rows[i].size() == count * inputs_[i].row_bytes());
    }
  }

  // Reads neighbours. Lines that lie next to each other in a file are read at once.
  absl::Status ReadLines(const CsvLines& lines, int64_t first, int64_t count, size_t to_row,
                         Rows rows) const {
    static thread_local Scratch scratch;
    while (count > 0) {
      const RecordIndex::Place begin = lines.index->at(first);
      int64_t some = 1, end = begin.offset + begin.bytes;
      for (; some < count; ++some) {
        const RecordIndex::Place next = lines.index->at(first + some);
        if (next.file != begin.file) break;
        if (next.offset + next.bytes - begin.offset > kNeighbourBytesMax) break;
        end = next.offset + next.bytes;
      }
      scratch.text.resize(end - begin.offset);
      {
        ASSIGN_OR_RETURN(const auto file, lines.files->Get(begin.file));
        const StageScope scope(InputStage::kRead);
        CountReadBytes(scratch.text.size());
        auto* bytes = reinterpret_cast<std::byte*>(scratch.text.data());
        RETURN_IF_ERROR(file->Read(begin.offset, absl::MakeSpan(bytes, scratch.text.size())));
      }
      const StageScope scope(InputStage::kDecode);
      for (int64_t i = 0; i < some; ++i) {
        const RecordIndex::Place place = lines.index->at(first + i);
        const absl::string_view line(scratch.text.data() + (place.offset - begin.offset),
                                     place.bytes);
        RETURN_IF_ERROR(
            ReadLine(lines, first + i, place, line, scratch.splitter, to_row + i, rows));
      }
      first += some;
      count -= some;
      to_row += some;
    }
    return absl::OkStatus();
  }

  absl::Status ReadLine(const CsvLines& lines, int64_t sample, const RecordIndex::Place& place,
                        absl::string_view line, CsvSplitter& splitter, size_t row,
                        Rows rows) const {
    const absl::string_view fault = splitter.Split(line, layout_.format);
    if (!fault.empty()) return Damaged(lines, sample, place, fault);
    const std::vector<absl::string_view>& fields = splitter.fields();
    if (fields.size() != layout_.columns) {
      return Damaged(
          lines, sample, place,
          absl::StrCat(fields.size(), " fields, but there are ", layout_.columns, " columns"));
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].empty()) continue;
      const MaybeFault field =
          Fill(inputs_[i], fields, rows[i].data() + row * inputs_[i].row_bytes());
      if (field) {
        return Damaged(lines, sample, place,
                       absl::StrCat(layout_.NameOf(field->column), ": ", field->message));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Damaged(const CsvLines& lines, int64_t sample,
                              const RecordIndex::Place& place, absl::string_view message) {
    ASSIGN_OR_RETURN(const auto file, lines.files->Get(place.file));
    for (int32_t i = 0; i < place.file; ++i) sample -= lines.index->files()[i].samples;
    return DataDamaged(lines.field, file->path(), sample, place.offset,
                       absl::StrCat(LineNumber(*file, place.offset), message));
  }

  const CsvLayout layout_;
  const std::vector<CsvColumns> inputs_;  // by graph input
  const CsvLines training_;
  const int64_t samples_;
  const std::optional<CsvLines> evaluation_;
};

// ---------------------------------------------------------------- the files

absl::StatusOr<CsvLines> ListLines(const std::string& path, const std::string& field) {
  ASSIGN_OR_RETURN(const std::vector<ListedFile> listed, ListFiles(path, field));
  CsvLines lines{.field = field};
  for (const ListedFile& file : listed) {
    lines.listed.push_back({file.path, file.bytes, file.modified_ns});
  }
  return lines;
}

absl::StatusOr<std::shared_ptr<const DataFile>> OpenUncompressed(const std::string& path,
                                                                 const std::string& field) {
  ASSIGN_OR_RETURN(std::shared_ptr<const DataFile> file, DataFile::Open(path, field));
  RETURN_IF_ERROR(CheckUncompressed(*file, field));
  return file;
}

// Returns the fields of the first line.
absl::StatusOr<std::vector<std::string>> FirstLine(const DataFile& file, const CsvFormat& format,
                                                   const std::string& field) {
  std::vector<std::string> fields;
  const absl::Status status =
      ScanCsv(file, format, field, [&](int64_t offset, absl::string_view line) -> absl::Status {
        CsvSplitter splitter;
        const absl::string_view fault = splitter.Split(line, format);
        if (!fault.empty()) {
          return DataDamaged(field, file.path(), format.has_header ? -1 : 0, offset, fault);
        }
        for (const absl::string_view text : splitter.fields()) fields.emplace_back(text);
        return absl::CancelledError();  // ends the scan
      });
  if (!status.ok() && !absl::IsCancelled(status)) return status;
  if (fields.empty()) return DataTooSmall(field, absl::StrCat(file.path(), ": has no line"));
  if (fields.size() > kColumnsMax) {
    return DataInvalid(field, absl::StrCat(file.path(), ": ", fields.size(), " columns, at most ",
                                           kColumnsMax, " are possible"));
  }
  return fields;
}

bool IsNumberOrRange(absl::string_view column) {
  return !column.empty() && absl::ascii_isdigit(column[0]) &&
         column.find_first_not_of("0123456789-") == absl::string_view::npos;
}

absl::StatusOr<CsvLayout> LayoutOf(const v1::CsvData& csv, const CsvLines& lines) {
  CsvLayout layout;
  layout.format.has_quotes = !csv.criteo();
  ASSIGN_OR_RETURN(const auto first, OpenUncompressed(lines.listed[0].path, lines.field));
  if (csv.separator().size() > 1) return DataInvalid("data.csv.separator", "must be one byte");
  if (!csv.separator().empty()) {
    layout.format.separator = csv.separator()[0];
  } else if (csv.criteo() || absl::EndsWith(first->path(), ".tsv")) {
    layout.format.separator = '\t';
  }
  const auto numbers = [](const auto& input) {
    return std::all_of(input.second.columns().begin(), input.second.columns().end(),
                       IsNumberOrRange);
  };
  layout.format.has_header =
      !csv.criteo() &&
      (csv.has_header() ? csv.header()
                        : !std::all_of(csv.inputs().begin(), csv.inputs().end(), numbers));
  ASSIGN_OR_RETURN(std::vector<std::string> fields, FirstLine(*first, layout.format, lines.field));
  layout.columns = fields.size();
  if (layout.format.has_header) layout.names = std::move(fields);
  if (csv.criteo()) {
    layout.names = CriteoColumns();
    if (layout.columns != layout.names.size()) {
      return DataInvalid(lines.field, absl::StrCat(first->path(), ": ", layout.columns,
                                                   " columns, but Criteo's files have ",
                                                   layout.names.size(), ", separated by tabs"));
    }
  }
  return layout;
}

absl::Status IndexFile(const DataFile& file, const CsvLayout& layout, const std::string& field,
                       RecordIndex::Builder& builder, int64_t& bytes_left) {
  builder.AddFile(file.path(), file.bytes(), file.modified_ns());
  const int64_t bytes_max = bytes_left;
  bool is_header = layout.format.has_header;
  CsvSplitter splitter;
  return ScanCsv(
      file, layout.format, field, [&](int64_t offset, absl::string_view line) -> absl::Status {
        if (is_header) {
          is_header = false;
          const absl::string_view fault = splitter.Split(line, layout.format);
          if (!fault.empty()) return DataDamaged(field, file.path(), -1, offset, fault);
          const bool is_same = std::equal(splitter.fields().begin(), splitter.fields().end(),
                                          layout.names.begin(), layout.names.end());
          if (is_same) return absl::OkStatus();
          return DataInvalid(
              field, absl::StrCat(file.path(), ": its header differs from the first file's"));
        }
        bytes_left -= kIndexBytes;
        if (bytes_left < 0) return DataTooLarge(field, file.path(), bytes_max);
        const RecordIndex::Builder::Run run = {offset, static_cast<int32_t>(line.size())};
        builder.Add({&run, 1}, {});
        return absl::OkStatus();
      });
}

absl::Status IndexLines(CsvLines& lines, const CsvLayout& layout, const std::string& folder,
                        int64_t& bytes_left) {
  const std::string key =
      absl::StrCat("csv separator=", static_cast<int>(layout.format.separator),
                   " quotes=", layout.format.has_quotes, " header=", layout.format.has_header);
  if (!folder.empty()) {
    auto loaded = RecordIndex::Load(folder, key, lines.listed);
    if (loaded.ok()) {
      lines.index = *std::move(loaded);
      lines.files = std::make_unique<IndexedFiles>(lines.index, lines.field);
      bytes_left -= lines.index->samples() * kIndexBytes;
      if (bytes_left >= 0) return absl::OkStatus();
      return DataTooLarge(lines.field, lines.listed[0].path,
                          bytes_left + lines.index->samples() * kIndexBytes);
    }
  }
  RecordIndex::Builder builder(key, /*slots=*/1, /*labels=*/0);
  for (const IndexedFile& listed : lines.listed) {
    ASSIGN_OR_RETURN(const auto file, OpenUncompressed(listed.path, lines.field));
    RETURN_IF_ERROR(IndexFile(*file, layout, lines.field, builder, bytes_left));
  }
  lines.index = std::move(builder).Build();
  lines.files = std::make_unique<IndexedFiles>(lines.index, lines.field);
  if (!folder.empty()) {
    const absl::Status saved = lines.index->Save(folder);
    LOG_IF(WARNING, !saved.ok()) << "the index of lines is built again next time: " << saved;
  }
  return absl::OkStatus();
}

// ---------------------------------------------------------------- the columns

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
                                               layout.names.size() > names.size() ? ", ..." : "")));
  }
  if (first < 1 || last < first || last > static_cast<int64_t>(layout.columns)) {
    return DataInvalid(field, absl::StrCat(Shown(text), ": columns are 1 to ", layout.columns));
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

absl::StatusOr<VocabularyRule> ReadVocabulary(const v1::CsvVocabulary& vocabulary,
                                              const InputUse& use, const std::string& field,
                                              int64_t& bytes_left) {
  const std::string path_field = absl::StrCat(field, ".path");
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(vocabulary.path(), path_field));
  RETURN_IF_ERROR(CheckUncompressed(*file, path_field));
  if (file->bytes() > bytes_left) return DataTooLarge(path_field, file->path(), bytes_left);
  bytes_left -= file->bytes();
  std::string text(file->bytes(), '\0');
  RETURN_IF_ERROR(
      file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  if (absl::EndsWith(text, "\n")) text.pop_back();
  VocabularyRule rule;
  std::vector<std::string> words;
  int64_t id = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    if (!rule.ids.emplace(line, static_cast<int32_t>(id)).second) {
      return DataInvalid(path_field, absl::StrCat(file->path(), ": line ", id + 1, ": ",
                                                  Shown(line), " is twice in the vocabulary"));
    }
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

absl::StatusOr<CsvColumns> OpenColumns(const v1::CsvData& csv, const v1::GraphInput& input,
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
    columns.rule = HashRule{buckets, spec.hash().per_column()};
    RETURN_IF_ERROR(CheckIdLimit(use, buckets * (spec.hash().per_column() ? elements : 1),
                                 buckets_field, absl::StrCat(buckets, " buckets")));
  } else if (spec.has_vocabulary()) {
    ASSIGN_OR_RETURN(columns.rule, ReadVocabulary(spec.vocabulary(), use,
                                                  absl::StrCat(field, ".vocabulary"), bytes_left));
  } else {
    const v1::CsvNumber& number = spec.number();
    columns.rule = NumberRule{.missing = number.missing(),
                              .scale = number.has_scale() ? number.scale() : 1,
                              .offset = number.offset(),
                              .is_log = number.log()};
  }
  return columns;
}

absl::Status CheckNames(const v1::CsvData& csv, const v1::Graph& graph) {
  for (const auto& [name, input] : csv.inputs()) {
    if (FindInput(graph, name) != nullptr) continue;
    std::vector<std::string> known;
    for (const v1::GraphInput& other : graph.inputs()) known.push_back(other.name());
    return DataInvalid(
        absl::StrCat("data.csv.inputs.", name),
        absl::StrCat("the model has no such input; it reads ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenCsvDataset(const v1::DataSpec& spec,
                                                              const v1::Graph& graph,
                                                              const DataOptions& options) {
  const v1::CsvData& csv = spec.csv();
  if (!(csv.holdout() >= 0 && csv.holdout() <= 0.5)) {
    return DataInvalid("data.csv.holdout",
                       absl::StrCat("must be in [0, 0.5] (is ", csv.holdout(), ")"));
  }
  if (csv.holdout() > 0 && !csv.eval_path().empty()) {
    return DataInvalid("data.csv.holdout", "cannot be given together with eval_path");
  }
  RETURN_IF_ERROR(CheckNames(csv, graph));
  if (graph.inputs().empty()) return DataInvalid("data.csv", "the model reads no data");
  ASSIGN_OR_RETURN(CsvLines training, ListLines(csv.path(), "data.csv.path"));
  ASSIGN_OR_RETURN(CsvLayout layout, LayoutOf(csv, training));
  int64_t bytes_left = options.held_bytes_max;
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  std::vector<CsvColumns> inputs;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    ASSIGN_OR_RETURN(CsvColumns input,
                     OpenColumns(csv, graph.inputs(i), uses[i], layout, bytes_left));
    inputs.push_back(std::move(input));
  }
  RETURN_IF_ERROR(IndexLines(training, layout, options.index_folder, bytes_left));
  const int64_t all = training.index->samples();
  const int64_t samples = all - std::llround(all * csv.holdout());
  if (all == 0) return DataTooSmall("data.csv.path", absl::StrCat(csv.path(), ": holds no sample"));
  if (samples < 1) {
    return DataTooSmall("data.csv.holdout",
                        absl::StrCat("leaves none of ", all, " lines to train on"));
  }
  std::optional<CsvLines> evaluation;
  if (!csv.eval_path().empty()) {
    ASSIGN_OR_RETURN(evaluation, ListLines(csv.eval_path(), "data.csv.eval_path"));
    RETURN_IF_ERROR(IndexLines(*evaluation, layout, options.index_folder, bytes_left));
  }
  return std::make_unique<CsvDataset>(std::move(layout), std::move(inputs), std::move(training),
                                      samples, std::move(evaluation));
}

}  // namespace muster
