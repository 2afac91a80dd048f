#include "lib/data/source/csv_dataset.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/file/indexed_files.h"
#include "lib/data/file/record_index.h"
#include "lib/data/fingerprint.h"
#include "lib/data/format/compression.h"
#include "lib/data/format/csv.h"
#include "lib/data/input_use.h"
#include "lib/data/source/csv_columns.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kIndexBytes = 12;                       // of a sample
constexpr int64_t kNeighbourBytesMax = int64_t{1} << 20;  // of lines that are read at once
constexpr int64_t kCountedBytesMax = int64_t{4} << 20;    // before a line whose number is shown

// Returns the names of the columns of Criteo's files, which have no header.
std::vector<std::string> CriteoColumns() {
  std::vector<std::string> names = {"label"};
  for (int i = 1; i <= 13; ++i) names.push_back(absl::StrCat("I", i));
  for (int i = 1; i <= 26; ++i) names.push_back(absl::StrCat("C", i));
  return names;
}

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
      const auto* rule = std::get_if<CsvColumns::Vocabulary>(&input.rule);
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
      const std::optional<CsvFault> field =
          FillColumns(inputs_[i], fields, rows[i].data() + row * inputs_[i].row_bytes());
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
  if (fields.size() > kCsvColumnsMax) {
    return DataInvalid(field, absl::StrCat(file.path(), ": ", fields.size(), " columns, at most ",
                                           kCsvColumnsMax, " are possible"));
  }
  return fields;
}

bool IsNumberOrRange(absl::string_view column) {
  return !column.empty() && absl::ascii_isdigit(column[0]) &&
         column.find_first_not_of("0123456789-") == absl::string_view::npos;
}

// Returns the columns that the first line of `first` has.
absl::StatusOr<CsvLayout> LayoutOf(const v1::CsvData& csv, const DataFile& first,
                                   const std::string& field) {
  CsvLayout layout;
  layout.format.has_quotes = !csv.criteo();
  if (csv.separator().size() > 1) return DataInvalid("data.csv.separator", "must be one byte");
  if (!csv.separator().empty()) {
    layout.format.separator = csv.separator()[0];
  } else if (csv.criteo() || absl::EndsWith(first.path(), ".tsv")) {
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
  ASSIGN_OR_RETURN(std::vector<std::string> fields, FirstLine(first, layout.format, field));
  layout.columns = fields.size();
  if (layout.format.has_header) layout.names = std::move(fields);
  if (csv.criteo()) {
    layout.names = CriteoColumns();
    if (layout.columns != layout.names.size()) {
      return DataInvalid(field, absl::StrCat(first.path(), ": ", layout.columns,
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

// Opens the columns of each graph input.
absl::StatusOr<std::vector<CsvColumns>> OpenInputs(const v1::CsvData& csv, const v1::Graph& graph,
                                                   const CsvLayout& layout, int64_t& bytes_left) {
  const std::vector<InputUse> uses = UsesOfInputs(graph);
  std::vector<CsvColumns> inputs;
  for (int i = 0; i < graph.inputs_size(); ++i) {
    ASSIGN_OR_RETURN(CsvColumns input,
                     OpenCsvColumns(csv, graph.inputs(i), uses[i], layout, bytes_left));
    inputs.push_back(std::move(input));
  }
  return inputs;
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

absl::Status CheckCsvColumns(const v1::CsvData& csv, const v1::Graph& graph, const DataFile& file,
                             const std::string& field, int64_t held_bytes_max) {
  ASSIGN_OR_RETURN(const CsvLayout layout, LayoutOf(csv, file, field));
  return OpenInputs(csv, graph, layout, held_bytes_max).status();
}

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
  // Programs such as Spark write empty files beside those with lines.
  auto with_lines = std::find_if(training.listed.begin(), training.listed.end(),
                                 [](const IndexedFile& listed) { return listed.bytes > 0; });
  if (with_lines == training.listed.end()) with_lines = training.listed.begin();
  ASSIGN_OR_RETURN(const auto first, OpenUncompressed(with_lines->path, training.field));
  ASSIGN_OR_RETURN(CsvLayout layout, LayoutOf(csv, *first, training.field));
  int64_t bytes_left = options.held_bytes_max;
  ASSIGN_OR_RETURN(std::vector<CsvColumns> inputs, OpenInputs(csv, graph, layout, bytes_left));
  RETURN_IF_ERROR(IndexLines(training, layout, options.index_folder, bytes_left));
  const int64_t all = training.index->samples();
  const int64_t samples = all - std::llround(all * csv.holdout());
  if (all == 0) return DataTooSmall("data.csv.path", absl::StrCat(csv.path(), ": holds no sample"));
  if (samples < 1) {
    return DataTooSmall("data.csv.holdout", absl::StrCat("leaves none of the ", all, " lines of ",
                                                         csv.path(), " to train on"));
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
