#include "lib/data/source/tar_dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/file_list.h"
#include "lib/data/file/indexed_files.h"
#include "lib/data/file/record_blocks.h"
#include "lib/data/file/record_index.h"
#include "lib/data/format/tar.h"
#include "lib/data/input_use.h"
#include "lib/data/kept_memory.h"
#include "lib/data/source/tar_columns.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kIntegerBytesMax = 64;
// Stands in the index for a number that could not be read. Read() reads its member again, so that
// the damage is found at the sample, as other damage is.
constexpr int32_t kNoLabel = std::numeric_limits<int32_t>::min();

// Divides a member's name. Returns whether it belongs to a sample.
bool Divide(absl::string_view name, absl::string_view& base, absl::string_view& key) {
  const size_t slash = name.rfind('/');
  const size_t start = slash == absl::string_view::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', start);
  if (dot == absl::string_view::npos || dot == start) return false;
  base = name.substr(0, dot);
  key = name.substr(dot + 1);
  return true;
}

// Collects the samples of archives into an index.
class TarIndexer {
 public:
  TarIndexer(const std::vector<TarColumn>& columns, std::string key, int labels)
      : columns_(columns),
        builder_(std::move(key), static_cast<int>(columns.size()), labels),
        runs_(columns.size()),
        ranks_(columns.size()),
        labels_(labels) {}

  absl::Status AddFile(const ListedFile& listed, absl::string_view field) {
    field_ = field;
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(listed.path, field));
    builder_.AddFile(file->path(), file->bytes(), file->modified_ns());
    path_ = &file->path();
    TarReader reader(file, field);
    while (true) {
      ASSIGN_OR_RETURN(const std::optional<TarMember> member, reader.Next());
      if (!member) break;
      RETURN_IF_ERROR(AddMember(*member, reader));
    }
    return EndSample();
  }

  int64_t samples() const { return samples_; }
  std::shared_ptr<const RecordIndex> Build() && { return std::move(builder_).Build(); }

 private:
  absl::Status Invalid(absl::string_view field, absl::string_view message) const {
    return DataInvalid(field, absl::StrCat(*path_, ": sample '", absl::CHexEscape(base_),
                                           "' at byte ", offset_, " ", message));
  }

  absl::Status AddMember(const TarMember& member, const TarReader& reader) {
    absl::string_view base, key;
    if (!Divide(member.name, base, key)) return absl::OkStatus();
    if (!is_open_ || base != base_) {
      RETURN_IF_ERROR(EndSample());
      is_open_ = true;
      base_.assign(base.data(), base.size());
      offset_ = member.offset;
      for (auto& run : runs_) run = {.offset = 0, .bytes = -1};
    }
    if (keys_.size() < kKeysInMessage) keys_.emplace_back(key);
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto& known = columns_[i].extensions;
      const auto found = std::find_if(
          known.begin(), known.end(),
          [&](const std::string& extension) { return absl::EqualsIgnoreCase(extension, key); });
      if (found == known.end()) continue;
      const int rank = static_cast<int>(found - known.begin());
      if (runs_[i].bytes >= 0 && ranks_[i] == rank) {
        return Invalid(columns_[i].field,
                       absl::StrCat("has two members with the extension ", *found));
      }
      // The first of the extensions that the job names counts.
      if (runs_[i].bytes >= 0 && ranks_[i] < rank) continue;
      if (member.bytes > RecordIndex::kPlaceBytesMax) {
        return Invalid(columns_[i].field,
                       absl::StrCat("has a member of ", member.bytes, " bytes; at most ",
                                    RecordIndex::kPlaceBytesMax, " are possible"));
      }
      runs_[i] = {.offset = member.offset, .bytes = static_cast<int32_t>(member.bytes)};
      ranks_[i] = rank;
      if (columns_[i].label < 0) continue;
      ASSIGN_OR_RETURN(labels_[columns_[i].label], LabelOf(member, reader));
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<int32_t> LabelOf(const TarMember& member, const TarReader& reader) {
    if (member.bytes > kIntegerBytesMax) return kNoLabel;
    ASSIGN_OR_RETURN(const std::string text, reader.ReadBytes(member));
    const int64_t number = TarIntegerOf(text).value_or(kNoLabel);
    if (number != static_cast<int32_t>(number)) return kNoLabel;
    return static_cast<int32_t>(number);
  }

  absl::Status EndSample() {
    if (!is_open_) return absl::OkStatus();
    is_open_ = false;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (runs_[i].bytes >= 0) continue;
      return Invalid(columns_[i].field,
                     absl::StrCat("has no member with the extension ",
                                  absl::StrJoin(columns_[i].extensions, " or "), "; it has ",
                                  absl::CHexEscape(absl::StrJoin(keys_, ", ")),
                                  ". Members of a sample must follow each other: pack the files in "
                                  "the order of their names"));
    }
    keys_.clear();
    builder_.Add(runs_, labels_);
    ++samples_;
    return absl::OkStatus();
  }

  static constexpr size_t kKeysInMessage = 8;

  const std::vector<TarColumn>& columns_;
  RecordIndex::Builder builder_;
  absl::string_view field_;
  const std::string* path_ = nullptr;
  int64_t samples_ = 0;
  // The sample that is being collected.
  bool is_open_ = false;
  std::string base_;
  int64_t offset_ = 0;  // of the bytes of its first member
  std::vector<std::string> keys_;
  std::vector<RecordIndex::Builder::Run> runs_;
  std::vector<int> ranks_;  // of the extension of each run, among those of its column
  std::vector<int32_t> labels_;
};

// The samples of one path.
class TarSamples {
 public:
  TarSamples(std::shared_ptr<const RecordIndex> index, std::string field)
      : index_(index), files_(index, std::move(field)) {}

  const RecordIndex& index() const { return *index_; }

  // Returns the blocks of the first `samples` samples, or null: see RecordBlocks::ForShuffle().
  std::unique_ptr<RecordBlocks> BlocksOf(const v1::DataSpec& data, int64_t samples,
                                         int64_t bytes_max) const {
    return RecordBlocks::ForShuffle(
        data, {.index = index_, .files = &files_, .samples = samples, .bytes_max = bytes_max});
  }

  // Fills the row of one column. `ref` is null for an evaluation. `held`, which may be null, holds
  // this sample.
  absl::Status Fill(const TarColumn& column, int slot, int64_t sample, const SampleRef* ref,
                    const RecordBlocks::Held* held, std::byte* row) const {
    if (column.label >= 0) {
      const int32_t label = index_->label(sample, column.label);
      if (label != kNoLabel) return column.PutLabel(label, row);
    }
    const RecordIndex::Place place = index_->at(sample, slot);
    thread_local std::vector<std::byte> memory;
    const absl::Cleanup free = [] { FreeIfLarge(memory); };
    const std::byte* bytes = held == nullptr ? nullptr : held->Find(0, place);
    if (bytes == nullptr) {
      const StageScope scope(InputStage::kRead);
      ASSIGN_OR_RETURN(const auto file, files_.Get(place.file));
      memory.resize(place.bytes);
      RETURN_IF_ERROR(file->Read(place.offset, absl::MakeSpan(memory)));
      CountReadBytes(place.bytes);
      bytes = memory.data();
    }
    const absl::Status put = column.Put(absl::MakeConstSpan(bytes, place.bytes), ref, row);
    if (!absl::IsInvalidArgument(put)) return put;
    return DataDamaged(column.field, index_->files()[place.file].path,
                       sample - index_->first_sample(place.file), place.offset, put.message());
  }

 private:
  const std::shared_ptr<const RecordIndex> index_;
  const IndexedFiles files_;
};

class TarDataset : public Dataset {
 public:
  // The first `samples` of `training` are for training. The others are held out, unless there is
  // `evaluation`.
  TarDataset(std::vector<TarColumn> columns, std::shared_ptr<const RecordIndex> training,
             int64_t samples, std::shared_ptr<const RecordIndex> evaluation,
             const v1::DataSpec& data, int64_t block_bytes_max)
      : columns_(std::move(columns)),
        training_(std::move(training), "data.tar.path"),
        samples_(samples),
        blocks_(training_.BlocksOf(data, samples, block_bytes_max)) {
    if (evaluation != nullptr) evaluation_.emplace(std::move(evaluation), "data.tar.eval_path");
  }

  int64_t samples() const override { return samples_; }
  int64_t evaluation_samples() const override {
    return evaluation_ ? evaluation_->index().samples() : training_.index().samples() - samples_;
  }

  bool is_slow() const override {
    return std::ranges::any_of(columns_,
                               [](const TarColumn& column) { return column.images != nullptr; });
  }

  int64_t mean_stored_bytes() const override { return training_.index().mean_sample_bytes(); }

  std::string fingerprint() const override {
    const std::string held_out =
        evaluation_ ? evaluation_->index().fingerprint() : absl::StrCat(evaluation_samples());
    return absl::StrCat("tar:", training_.index().fingerprint(), ":", held_out);
  }

  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    const auto& images = columns_[input].images;
    return images == nullptr ? absl::Span<const kernels::ByteValues>() : images->values();
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CheckSizes(samples.size(), rows);
    for (size_t row = 0; row < samples.size(); ++row) {
      RETURN_IF_ERROR(FillTraining(samples[row], /*held=*/nullptr, row, rows));
    }
    return absl::OkStatus();
  }

  absl::Status ReadInOrder(int64_t batch, absl::Span<const SampleRef> samples,
                           Rows rows) const override {
    if (blocks_ == nullptr) return Read(samples, rows);
    CheckSizes(samples.size(), rows);
    for (size_t row = 0; row < samples.size(); ++row) {
      const RecordBlocks::Held held = [&] {
        const StageScope scope(InputStage::kRead);
        return blocks_->Hold(batch, samples.subspan(row, 1));
      }();
      RETURN_IF_ERROR(FillTraining(samples[row], &held, row, rows));
    }
    return absl::OkStatus();
  }

  void WillRead(int64_t batch, absl::Span<const SampleRef> samples) const override {
    if (blocks_ != nullptr) blocks_->WillHold(batch, samples);
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CheckSizes(count, rows);
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    const TarSamples& from = evaluation_ ? *evaluation_ : training_;
    const int64_t start = (evaluation_ ? 0 : samples_) + first;
    for (int64_t row = 0; row < count; ++row) {
      RETURN_IF_ERROR(FillRow(from, start + row, /*ref=*/nullptr, /*held=*/nullptr, row, rows));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status FillTraining(const SampleRef& sample, const RecordBlocks::Held* held, int64_t row,
                            Rows rows) const {
    CHECK(0 <= sample.sample && sample.sample < samples_) << sample.sample;
    return FillRow(training_, sample.sample, &sample, held, row, rows);
  }

  void CheckSizes(size_t count, Rows rows) const {
    CHECK_EQ(rows.size(), columns_.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i].empty() || rows[i].size() == count * columns_[i].row_bytes());
    }
  }

  absl::Status FillRow(const TarSamples& from, int64_t sample, const SampleRef* ref,
                       const RecordBlocks::Held* held, size_t row, Rows rows) const {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].empty()) continue;
      RETURN_IF_ERROR(from.Fill(columns_[i], static_cast<int>(i), sample, ref, held,
                                rows[i].data() + row * columns_[i].row_bytes()));
    }
    return absl::OkStatus();
  }

  const std::vector<TarColumn> columns_;  // by graph input
  const TarSamples training_;
  const int64_t samples_;
  const std::unique_ptr<RecordBlocks> blocks_;  // of training_, so destroyed before it
  std::optional<TarSamples> evaluation_;
};

int LabelsOf(const std::vector<TarColumn>& columns) {
  int labels = 0;
  for (const TarColumn& column : columns) labels += column.label >= 0;
  return labels;
}

// Returns how the samples are found, for the index.
std::string KeyOf(const std::vector<TarColumn>& columns) {
  std::string key = "tar 1";
  for (const TarColumn& column : columns) {
    absl::StrAppend(&key, column.label >= 0 ? " integer " : " ",
                    absl::StrJoin(column.extensions, ";"));
  }
  return key;
}

// Returns "/data/a.tar: record 12 at byte 3456".
std::string PlaceOf(const RecordIndex& index, int64_t sample, size_t slot) {
  const RecordIndex::Place place = index.at(sample, static_cast<int>(slot));
  int64_t record = sample;
  for (int32_t i = 0; i < place.file; ++i) record -= index.files()[i].samples;
  return absl::StrCat(index.files()[place.file].path, ": record ", record, " at byte ",
                      place.offset);
}

// Checks that the model accepts every number of the index.
absl::Status CheckLabels(const RecordIndex& index, const std::vector<TarColumn>& columns) {
  for (size_t slot = 0; slot < columns.size(); ++slot) {
    const TarColumn& column = columns[slot];
    if (column.label < 0 || column.dtype != v1::DTYPE_I32) continue;
    int64_t largest = -1, sample_of_largest = 0;
    for (int64_t i = 0; i < index.samples(); ++i) {
      const int32_t label = index.label(i, column.label);
      if (label == kNoLabel || column.use.Takes(label)) continue;
      if (label < 0 || !column.use.is_bounded()) {
        return DataInvalid(column.field,
                           absl::StrCat(PlaceOf(index, i, slot), ": ", column.NumberFault(label)));
      }
      if (label > largest) largest = label, sample_of_largest = i;
    }
    if (largest < 0) continue;
    return DataInvalid(column.field,
                       absl::StrCat(PlaceOf(index, sample_of_largest, slot), ": numbers up to ",
                                    largest, " do not fit the model's ", column.use.limit,
                                    " classes: set model.zoo.args.classes to ", largest + 1,
                                    ", or correct the number"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const RecordIndex>> IndexOf(const std::string& path,
                                                           absl::string_view field,
                                                           const std::vector<TarColumn>& columns,
                                                           const DataOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<ListedFile> listed,
                   ListFiles(path, field, {.extension = ".tar"}));
  const std::string key = KeyOf(columns);
  std::shared_ptr<const RecordIndex> index;
  if (!options.index_folder.empty()) {
    std::vector<IndexedFile> files;
    for (const ListedFile& file : listed) {
      files.push_back({.path = file.path, .bytes = file.bytes, .modified_ns = file.modified_ns});
    }
    auto loaded = RecordIndex::Load(options.index_folder, key, files);
    if (loaded.ok()) {
      index = *std::move(loaded);
    } else if (!absl::IsNotFound(loaded.status())) {
      LOG(WARNING) << "builds the index of " << path << " again: " << loaded.status().message();
    }
  }
  if (index == nullptr) {
    const int labels = LabelsOf(columns);
    const int64_t sample_bytes = 12 * std::ssize(columns) + 4 * labels;
    TarIndexer indexer(columns, key, labels);
    for (const ListedFile& file : listed) {
      RETURN_IF_ERROR(indexer.AddFile(file, field));
      if (indexer.samples() * sample_bytes > options.held_bytes_max) {
        return DataTooLarge(field, path, options.held_bytes_max);
      }
    }
    index = std::move(indexer).Build();
    if (!options.index_folder.empty()) {
      const absl::Status saved = index->Save(options.index_folder);
      if (!saved.ok()) LOG(WARNING) << "cannot keep the index of " << path << ": " << saved;
    }
  }
  RETURN_IF_ERROR(CheckLabels(*index, columns));
  if (index->samples() > 0) return index;
  return DataTooSmall(field, absl::StrCat(path, ": the archives hold no sample"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenTarDataset(
    const v1::DataSpec& spec, const v1::Graph& graph, const DataOptions& options,
    const MakeImageRows& make_image_rows) {
  const v1::TarData& tar = spec.tar();
  if (!(tar.holdout() >= 0 && tar.holdout() <= 0.5)) {
    return DataInvalid("data.tar.holdout",
                       absl::StrCat("must be in [0, 0.5] (is ", tar.holdout(), ")"));
  }
  if (tar.holdout() > 0 && !tar.eval_path().empty()) {
    return DataInvalid("data.tar.holdout", "cannot be given together with eval_path");
  }
  ASSIGN_OR_RETURN(std::vector<TarColumn> columns, TarColumnsOf(spec, graph, make_image_rows));
  ASSIGN_OR_RETURN(auto training, IndexOf(tar.path(), "data.tar.path", columns, options));
  std::shared_ptr<const RecordIndex> evaluation;
  if (!tar.eval_path().empty()) {
    ASSIGN_OR_RETURN(evaluation, IndexOf(tar.eval_path(), "data.tar.eval_path", columns, options));
  }
  const int64_t all = training->samples();
  const int64_t samples = all - std::llround(static_cast<double>(all) * tar.holdout());
  if (samples < 1) {
    return DataTooSmall("data.tar.holdout", absl::StrCat("leaves none of ", all, " to train on"));
  }
  return std::make_unique<TarDataset>(std::move(columns), std::move(training), samples,
                                      std::move(evaluation), spec, options.block_bytes_max);
}

}  // namespace muster
