#include "lib/data/source/tfrecord_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/byte_values.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/file/indexed_files.h"
#include "lib/data/file/record_blocks.h"
#include "lib/data/file/record_index.h"
#include "lib/data/format/example.h"
#include "lib/data/format/tfrecord.h"
#include "lib/data/kept_memory.h"
#include "lib/data/source/example_rows.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Records that are read before they are parsed. They should fit the processor's cache.
constexpr int kRecordsAtOnce = 256;
constexpr int64_t kBytesAtOnce = 256 << 10;
// The beginning of the data in which each wanted feature must occur.
constexpr int64_t kRecordsSearched = 1000;
constexpr int32_t kDamagedCount = -1;

constexpr char kTrainingField[] = "data.tfrecord.path";
constexpr char kEvaluationField[] = "data.tfrecord.eval_path";

// Memory for bytes. Its content is undefined at first.
class RawMemory {
 public:
  std::byte* AtLeast(int64_t bytes) {
    if (bytes > capacity_) {
      memory_.reset(new std::byte[bytes]);  // not make_unique(), which writes zeros first
      capacity_ = bytes;
    }
    return memory_.get();
  }
  void FreeIfLarge() {
    if (capacity_ <= kRecordBytesKept) return;
    memory_.reset();
    capacity_ = 0;
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  int64_t capacity_ = 0;
};

// The records of a path.
class RecordSet {
 public:
  RecordSet(std::shared_ptr<const RecordIndex> index, std::string field, bool checksums)
      : index_(index), field_(field), checksums_(checksums), files_(index, std::move(field)) {}

  const RecordIndex& index() const { return *index_; }

  // Returns the blocks of the first `samples` records, or null: see RecordBlocks::ForShuffle().
  std::unique_ptr<RecordBlocks> BlocksOf(const v1::DataSpec& data, int64_t samples,
                                         int64_t bytes_max) const;

  // Calls `take(i, data)` for the record of each sample. Its status may be INVALID_ARGUMENT, which
  // becomes DATA_DAMAGED with the place of the record.
  template <typename Take>
  absl::Status Read(absl::Span<const SampleRef> samples, Take take) const;
  // Reads samples of batch number `batch` in the same way, from their blocks.
  template <typename Take>
  absl::Status ReadInBlocks(int64_t batch, absl::Span<const SampleRef> samples,
                            RecordBlocks& blocks, Take take) const;

 private:
  struct Part {
    RecordIndex::Place place;
    int64_t at;  // of the data, in the memory that is read
  };

  // Reads at most kRecordsAtOnce samples.
  template <typename Take>
  absl::Status ReadSomeInBlocks(int64_t batch, absl::Span<const SampleRef> samples,
                                RecordBlocks& blocks, Take take) const;
  // Calls `take(i, data)` if the checksum of the data is sound.
  template <typename Take>
  absl::Status TakeOne(const SampleRef& sample, size_t i, absl::Span<const std::byte> data,
                       Take& take) const;

  int64_t footer_bytes() const { return checksums_ ? kTfrecordFooterBytes : 0; }
  // Finds as many records as are read at once.
  absl::Span<const Part> Plan(absl::Span<const SampleRef> samples, absl::Span<Part> memory) const;
  absl::Status ReadParts(absl::Span<const Part> parts, std::byte* to) const;
  absl::Status DamagedAt(int64_t sample, const absl::Status& status) const;

  const std::shared_ptr<const RecordIndex> index_;
  const std::string field_;
  const bool checksums_;
  const IndexedFiles files_;
};

absl::Span<const RecordSet::Part> RecordSet::Plan(absl::Span<const SampleRef> samples,
                                                  absl::Span<Part> memory) const {
  constexpr int64_t kBetween = kTfrecordFooterBytes + kTfrecordHeaderBytes;
  size_t count = 0;
  int64_t end = 0;
  while (count < std::min(samples.size(), memory.size()) && (count == 0 || end < kBytesAtOnce)) {
    Part& part = memory[count];
    part.place = index_->at(samples[count].sample);
    // Neighbours in the file are neighbours in memory, so that one call reads both.
    part.at = count == 0 ? 0 : end + kBetween;
    end = part.at + part.place.bytes;
    ++count;
  }
  return memory.first(count);
}

absl::Status RecordSet::ReadParts(absl::Span<const Part> parts, std::byte* to) const {
  std::shared_ptr<const DataFile> file;
  for (size_t first = 0, next; first < parts.size(); first = next) {
    const Part& begin = parts[first];
    for (next = first + 1; next < parts.size(); ++next) {
      const Part& part = parts[next];
      if (part.place.file != begin.place.file ||
          part.place.offset - begin.place.offset != part.at - begin.at) {
        break;
      }
    }
    const Part& last = parts[next - 1];
    const int64_t bytes = last.at + last.place.bytes + footer_bytes() - begin.at;
    if (first == 0 || begin.place.file != parts[first - 1].place.file) {
      ASSIGN_OR_RETURN(file, files_.Get(begin.place.file));
    }
    RETURN_IF_ERROR(file->Read(begin.place.offset, absl::MakeSpan(to + begin.at, bytes)));
    CountReadBytes(bytes);
  }
  return absl::OkStatus();
}

absl::Status RecordSet::DamagedAt(int64_t sample, const absl::Status& status) const {
  if (!absl::IsInvalidArgument(status)) return status;
  const RecordIndex::Place place = index_->at(sample);
  const int64_t record = sample - index_->first_sample(place.file);
  return DataDamaged(field_, index_->files()[place.file].path, record,
                     place.offset - kTfrecordHeaderBytes, status.message());
}

std::unique_ptr<RecordBlocks> RecordSet::BlocksOf(const v1::DataSpec& data, int64_t samples,
                                                  int64_t bytes_max) const {
  return RecordBlocks::ForShuffle(data, {.index = index_,
                                         .files = &files_,
                                         .samples = samples,
                                         .tail_bytes = footer_bytes(),
                                         .bytes_max = bytes_max});
}

template <typename Take>
absl::Status RecordSet::TakeOne(const SampleRef& sample, size_t i, absl::Span<const std::byte> data,
                                Take& take) const {
  absl::Status status;
  if (checksums_ && !HasSoundFooter({data.data(), data.size() + kTfrecordFooterBytes})) {
    status = absl::InvalidArgumentError("the checksum differs");
  } else {
    status = take(i, data);
  }
  return status.ok() ? status : DamagedAt(sample.sample, status);
}

template <typename Take>
absl::Status RecordSet::Read(absl::Span<const SampleRef> samples, Take take) const {
  static thread_local RawMemory memory;
  const absl::Cleanup free = [] { memory.FreeIfLarge(); };
  std::array<Part, kRecordsAtOnce> part_memory;
  for (size_t done = 0; done < samples.size();) {
    const absl::Span<const Part> parts = Plan(samples.subspan(done), absl::MakeSpan(part_memory));
    const Part& last = parts.back();
    std::byte* const bytes = memory.AtLeast(last.at + last.place.bytes + kTfrecordFooterBytes);
    {
      const StageScope scope(InputStage::kRead);
      RETURN_IF_ERROR(ReadParts(parts, bytes));
    }
    const StageScope scope(InputStage::kDecode);
    for (const Part& part : parts) {
      const auto data = absl::MakeConstSpan(bytes + part.at, part.place.bytes);
      RETURN_IF_ERROR(TakeOne(samples[done], done, data, take));
      ++done;
    }
  }
  return absl::OkStatus();
}

template <typename Take>
absl::Status RecordSet::ReadSomeInBlocks(int64_t batch, absl::Span<const SampleRef> samples,
                                         RecordBlocks& blocks, Take take) const {
  const RecordBlocks::Held held = [&] {
    const StageScope scope(InputStage::kRead);
    return blocks.Hold(batch, samples);
  }();
  const StageScope scope(InputStage::kDecode);
  std::array<absl::Span<const std::byte>, kRecordsAtOnce> records;
  for (size_t i = 0; i < samples.size(); ++i) {
    const RecordIndex::Place place = index_->at(samples[i].sample);
    const std::byte* const data = held.Find(i, place);
    records[i] = absl::MakeConstSpan(data, data == nullptr ? 0 : place.bytes);
  }
  for (size_t i = 0, next; i < samples.size(); i = next) {
    next = i + 1;
    if (records[i].data() != nullptr) {
      RETURN_IF_ERROR(TakeOne(samples[i], i, records[i], take));
      continue;
    }
    while (next < samples.size() && records[next].data() == nullptr) ++next;
    RETURN_IF_ERROR(
        Read(samples.subspan(i, next - i),
             [&](size_t k, absl::Span<const std::byte> data) { return take(i + k, data); }));
  }
  return absl::OkStatus();
}

template <typename Take>
absl::Status RecordSet::ReadInBlocks(int64_t batch, absl::Span<const SampleRef> samples,
                                     RecordBlocks& blocks, Take take) const {
  for (size_t done = 0; done < samples.size(); done += kRecordsAtOnce) {
    RETURN_IF_ERROR(ReadSomeInBlocks(
        batch, samples.subspan(done, kRecordsAtOnce), blocks,
        [&](size_t i, absl::Span<const std::byte> data) { return take(done + i, data); }));
  }
  return absl::OkStatus();
}

// Fills the rows of a sample from its record.
struct RowFiller {
  absl::Status operator()(size_t i, absl::Span<const std::byte> example) const {
    return rows.Fill(example, samples[i], use, static_cast<int64_t>(i), to);
  }

  const ExampleRows& rows;
  ExampleRows::Use use;
  absl::Span<const SampleRef> samples;
  Dataset::Rows to;
};

class TfrecordDataset : public Dataset {
 public:
  // The first `samples` of `training` are for training. Without `evaluation` the others are held
  // out. `blocks` of `training` may be null.
  TfrecordDataset(std::unique_ptr<const ExampleRows> rows,
                  std::unique_ptr<const RecordSet> training, int64_t samples,
                  std::unique_ptr<RecordBlocks> blocks, std::unique_ptr<const RecordSet> evaluation)
      : rows_(std::move(rows)),
        training_(std::move(training)),
        samples_(samples),
        blocks_(std::move(blocks)),
        evaluation_(std::move(evaluation)) {}

  int64_t samples() const override { return samples_; }
  int64_t evaluation_samples() const override {
    return evaluation_ != nullptr ? evaluation_->index().samples()
                                  : training_->index().samples() - samples_;
  }

  std::string fingerprint() const override {
    const std::string& training = training_->index().fingerprint();
    if (evaluation_ == nullptr) return training;
    return absl::StrCat(training, "-", evaluation_->index().fingerprint());
  }

  bool is_slow() const override { return rows_->has_images(); }

  int64_t mean_stored_bytes() const override { return training_->index().mean_sample_bytes(); }

  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    return rows_->row_values(input);
  }

  absl::StatusOr<int64_t> CountTargets(const Target& target,
                                       absl::Span<const SampleRef> samples) const override {
    const std::optional<int> label = LabelOf(target.input);
    if (!label) return Dataset::CountTargets(target, samples);
    int64_t counted = 0;
    for (const SampleRef& sample : samples) {
      const int32_t count = training_->index().label(sample.sample, *label);
      // Reading a damaged record gives the error that names its place.
      if (count == kDamagedCount) return Dataset::CountTargets(target, samples);
      counted += count;
    }
    return counted;
  }

  absl::StatusOr<int64_t> CountEvaluationTargets(const Target& target, int64_t first,
                                                 int64_t count) const override {
    const std::optional<int> label = LabelOf(target.input);
    if (!label) return Dataset::CountEvaluationTargets(target, first, count);
    const RecordIndex& index = evaluation_ != nullptr ? evaluation_->index() : training_->index();
    const int64_t begin = evaluation_ != nullptr ? first : samples_ + first;
    int64_t counted = 0;
    for (int64_t sample = begin; sample < begin + count; ++sample) {
      const int32_t targets = index.label(sample, *label);
      if (targets == kDamagedCount) return Dataset::CountEvaluationTargets(target, first, count);
      counted += targets;
    }
    return counted;
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CheckSamples(samples);
    CheckSizes(samples.size(), rows);
    return training_->Read(samples, RowFiller{*rows_, ExampleRows::Use::kTraining, samples, rows});
  }

  absl::Status ReadInOrder(int64_t batch, absl::Span<const SampleRef> samples,
                           Rows rows) const override {
    if (blocks_ == nullptr) return Read(samples, rows);
    CheckSamples(samples);
    CheckSizes(samples.size(), rows);
    return training_->ReadInBlocks(batch, samples, *blocks_,
                                   RowFiller{*rows_, ExampleRows::Use::kTraining, samples, rows});
  }

  void WillRead(int64_t batch, absl::Span<const SampleRef> samples) const override {
    if (blocks_ != nullptr) blocks_->WillHold(batch, samples);
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    std::vector<SampleRef> samples(count);
    const int64_t begin = evaluation_ != nullptr ? first : samples_ + first;
    for (int64_t i = 0; i < count; ++i) samples[i].sample = begin + i;
    CheckSizes(count, rows);
    const RecordSet& from = evaluation_ != nullptr ? *evaluation_ : *training_;
    return from.Read(samples, RowFiller{*rows_, ExampleRows::Use::kEvaluation, samples, rows});
  }

 private:
  void CheckSamples(absl::Span<const SampleRef> samples) const {
    for (const SampleRef& sample : samples) {
      CHECK(0 <= sample.sample && sample.sample < samples_) << sample.sample;
    }
  }

  void CheckSizes(size_t samples, Rows rows) const {
    CHECK_EQ(rows.size(), rows_->inputs());
    for (int i = 0; i < rows_->inputs(); ++i) {
      CHECK(rows[i].empty() || rows[i].size() == samples * rows_->row_bytes(i));
    }
  }

  // The label of the index that has the counts of this input.
  std::optional<int> LabelOf(int input) const {
    const absl::Span<const int> counted = rows_->counted_inputs();
    const auto at = std::find(counted.begin(), counted.end(), input);
    if (at == counted.end()) return std::nullopt;
    return static_cast<int>(at - counted.begin());
  }

  const std::unique_ptr<const ExampleRows> rows_;
  const std::unique_ptr<const RecordSet> training_;
  const int64_t samples_;
  const std::unique_ptr<RecordBlocks> blocks_;         // of training_, so destroyed before it
  const std::unique_ptr<const RecordSet> evaluation_;  // null: see the constructor
};

// Adds the records of a file. `held_bytes_max`: see DataOptions.
absl::Status IndexFile(const ListedFile& listed, const std::string& field, bool checksums,
                       const ExampleRows& rows, int64_t held_bytes_max, int64_t& held_bytes,
                       RecordIndex::Builder& builder) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const DataFile> file, DataFile::Open(listed.path, field));
  builder.AddFile(listed.path, file->bytes(), file->modified_ns());
  const int64_t sample_bytes = 12 + 4 * std::ssize(rows.counted_inputs());
  TfrecordScanner scanner(*file, field);
  std::vector<int32_t> counts;
  for (;;) {
    ASSIGN_OR_RETURN(const bool is_record, scanner.Next());
    if (!is_record) return absl::OkStatus();
    held_bytes += sample_bytes;
    if (held_bytes > held_bytes_max) return DataTooLarge(field, listed.path, held_bytes_max);
    counts.clear();
    if (!rows.counted_inputs().empty()) {
      using Check = TfrecordScanner::Check;
      const auto example = scanner.Data(checksums ? Check::kChecksum : Check::kNone);
      absl::Status status = example.status();
      if (status.ok()) status = rows.CountTargets(*example, counts);
      // A damaged record is an error if it is read, not if it is indexed.
      const bool is_damaged = absl::IsInvalidArgument(status) || absl::IsDataLoss(status);
      if (!status.ok() && !is_damaged) return status;
      if (is_damaged) counts.assign(rows.counted_inputs().size(), kDamagedCount);
    }
    builder.Add({{.offset = scanner.offset(), .bytes = scanner.bytes()}}, counts);
  }
}

absl::StatusOr<std::shared_ptr<const RecordIndex>> IndexOf(const std::string& path,
                                                           const std::string& field, bool checksums,
                                                           const ExampleRows& rows,
                                                           const DataOptions& options,
                                                           int64_t& held_bytes) {
  ASSIGN_OR_RETURN(const std::vector<ListedFile> listed, ListFiles(path, field));
  // Counts depend on the rules of the inputs, and on which records are damaged.
  const std::string counted = rows.DescribeCounted();
  const std::string key =
      counted.empty() ? "tfrecord-1" : absl::StrCat("tfrecord-1 ", checksums, "\n", counted);
  if (!options.index_folder.empty()) {
    std::vector<IndexedFile> files;
    for (const ListedFile& file : listed) {
      files.push_back({.path = file.path, .bytes = file.bytes, .modified_ns = file.modified_ns});
    }
    auto index = RecordIndex::Load(options.index_folder, key, files);
    if (index.ok() || !absl::IsNotFound(index.status())) return index;
  }
  RecordIndex::Builder builder(key, /*slots=*/1, static_cast<int>(rows.counted_inputs().size()));
  for (const ListedFile& file : listed) {
    RETURN_IF_ERROR(
        IndexFile(file, field, checksums, rows, options.held_bytes_max, held_bytes, builder));
  }
  std::shared_ptr<const RecordIndex> index = std::move(builder).Build();
  if (!options.index_folder.empty()) {
    // The index is only saved time.
    const absl::Status saved = index->Save(options.index_folder);
    LOG_IF(WARNING, !saved.ok()) << saved.message() << "; the next process makes the index again";
  }
  return index;
}

// Returns DATA_INVALID for a feature that none of the first records has. An error in the name of a
// feature would otherwise give rows of padding.
absl::Status CheckFeatures(const RecordSet& records, const ExampleRows& rows) {
  std::vector<bool> seen(rows.features().size());
  std::string first;
  const int64_t searched = std::min(records.index().samples(), kRecordsSearched);
  for (int64_t i = 0; i < searched && std::ranges::count(seen, false) > 0; ++i) {
    const SampleRef sample{.sample = i};
    const absl::Status status = records.Read(absl::MakeConstSpan(&sample, 1),
                                             [&](size_t, absl::Span<const std::byte> example) {
                                               if (first.empty())
                                                 first = DescribeFeatures(example).value_or("");
                                               return rows.Note(example, seen);
                                             });
    // Read() may replace a damaged record, so it is no error here.
    if (!status.ok() && ReasonOf(status) != "DATA_DAMAGED") return status;
    if (!status.ok() && i == searched - 1 && first.empty()) return status;
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i]) continue;
    return DataInvalid(
        rows.features()[i].field,
        absl::StrCat(records.index().files()[0].path, ": no feature '", rows.features()[i].name,
                     "' in the first ", searched, " records; the first one has: ", first));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const RecordSet>> OpenRecords(
    const v1::TfrecordData& tfrecord, const std::string& path, const std::string& field,
    const ExampleRows& rows, const DataOptions& options, int64_t& held_bytes) {
  const bool checksums = !tfrecord.has_checksums() || tfrecord.checksums();
  ASSIGN_OR_RETURN(std::shared_ptr<const RecordIndex> index,
                   IndexOf(path, field, checksums, rows, options, held_bytes));
  if (index->samples() == 0) return DataTooSmall(field, absl::StrCat(path, ": holds no record"));
  auto records = std::make_unique<const RecordSet>(std::move(index), field, checksums);
  RETURN_IF_ERROR(CheckFeatures(*records, rows));
  return records;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenTfrecordDataset(
    const v1::DataSpec& spec, const v1::Graph& graph, const DataOptions& options,
    const MakeImageRows& make_images) {
  const v1::TfrecordData& tfrecord = spec.tfrecord();
  if (!(tfrecord.holdout() >= 0 && tfrecord.holdout() <= 0.5)) {
    return DataInvalid("data.tfrecord.holdout",
                       absl::StrCat("must be in [0, 0.5] (is ", tfrecord.holdout(), ")"));
  }
  if (!tfrecord.eval_path().empty() && tfrecord.holdout() > 0) {
    return DataInvalid("data.tfrecord.holdout", "cannot be given together with eval_path");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<const ExampleRows> rows,
                   ExampleRows::Create(spec, graph, make_images));
  int64_t held_bytes = 0;
  ASSIGN_OR_RETURN(
      std::unique_ptr<const RecordSet> training,
      OpenRecords(tfrecord, tfrecord.path(), kTrainingField, *rows, options, held_bytes));
  const int64_t all = training->index().samples();
  const int64_t samples = all - std::llround(static_cast<double>(all) * tfrecord.holdout());
  if (samples < 1) {
    return DataTooSmall("data.tfrecord.holdout",
                        absl::StrCat("leaves none of ", all, " to train on"));
  }
  std::unique_ptr<const RecordSet> evaluation;
  if (!tfrecord.eval_path().empty()) {
    ASSIGN_OR_RETURN(evaluation, OpenRecords(tfrecord, tfrecord.eval_path(), kEvaluationField,
                                             *rows, options, held_bytes));
  }
  std::unique_ptr<RecordBlocks> blocks = training->BlocksOf(spec, samples, options.block_bytes_max);
  return std::make_unique<TfrecordDataset>(std::move(rows), std::move(training), samples,
                                           std::move(blocks), std::move(evaluation));
}

}  // namespace muster
