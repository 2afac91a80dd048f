#include "lib/data/file/record_index.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/file/mapped_file.h"
#include "lib/file/regular_file.h"
#include "lib/security/sha256.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little);  // numbers are stored as they are

// The parts of the file follow. A text is its length (i64) and its bytes.
//
// - magic
// - u32: CRC-32C of all parts after the next one
// - u32: 0
// - i32: slots, labels
// - i64: samples
// - text: key
// - i64: number of files
// - for each file: text: path; i64: size, time, samples
// - 32 digits: fingerprint
// - zeros, up to a multiple of eight bytes
// - i64: offsets; i32: sizes; i32: labels
constexpr absl::string_view kMagic = "muster-index-01\n";
constexpr size_t kPrefixBytes = 24;
constexpr int kSlotsMax = 64;
constexpr int kLabelsMax = 64;
constexpr size_t kFingerprintDigits = 32;
constexpr int64_t kSamplesMax = int64_t{1} << 40;  // no product of sizes overflows

template <typename T>
absl::string_view AsText(absl::Span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

template <typename Number>
void Append(Number number, std::string& text) {
  text.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void AppendText(absl::string_view part, std::string& text) {
  Append<int64_t>(part.size(), text);
  text.append(part.data(), part.size());
}

// Takes numbers and texts from the front of `rest`. All calls after a failed one fail, too.
class Cursor {
 public:
  explicit Cursor(absl::string_view rest) : rest_(rest) {}

  template <typename Number>
  Number Take() {
    Number number = 0;
    if (const absl::string_view bytes = TakeBytes(sizeof(number)); !bytes.empty()) {
      std::memcpy(&number, bytes.data(), sizeof(number));
    }
    return number;
  }
  absl::string_view TakeText() { return TakeBytes(Take<int64_t>()); }
  absl::string_view TakeBytes(int64_t count) {
    failed_ |= count < 0 || count > static_cast<int64_t>(rest_.size());
    if (failed_) return {};
    const absl::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  template <typename Number>
  absl::Span<const Number> TakeNumbers(int64_t count) {
    const absl::string_view bytes = TakeBytes(count * static_cast<int64_t>(sizeof(Number)));
    return {reinterpret_cast<const Number*>(bytes.data()), bytes.size() / sizeof(Number)};
  }

  bool failed() const { return failed_; }
  size_t left() const { return rest_.size(); }

 private:
  absl::string_view rest_;
  bool failed_ = false;
};

std::string HashDigits(Sha256& hash) {
  return absl::BytesToHexString(hash.Finish()).substr(0, kFingerprintDigits);
}

std::string PathOfIndex(const std::string& folder, absl::string_view key,
                        absl::Span<const IndexedFile> files) {
  std::string named;
  AppendText(key, named);
  for (const IndexedFile& file : files) AppendText(file.path, named);
  Sha256 hash;
  hash.Add(named);
  return absl::StrCat(folder, "/", HashDigits(hash), ".index");
}

bool AreSame(const IndexedFile& a, const IndexedFile& b) {
  return a.path == b.path && a.bytes == b.bytes && a.modified_ns == b.modified_ns;
}

// Writes all bytes. Returns 0 or an errno.
int WriteAll(int file, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) return errno;
    if (count > 0) bytes.remove_prefix(count);
  }
  return 0;
}

}  // namespace

// An index that owns the memory of its spans: vectors, or a mapping of its file.
class RecordIndex::Stored : public RecordIndex {
 public:
  Stored(std::string key, int slots, int labels, std::vector<IndexedFile> files,
         std::vector<int64_t> offsets, std::vector<int32_t> bytes,
         std::vector<int32_t> label_values)
      : own_offsets_(std::move(offsets)),
        own_bytes_(std::move(bytes)),
        own_label_values_(std::move(label_values)) {
    key_ = std::move(key);
    slots_ = slots;
    labels_ = labels;
    files_ = std::move(files);
    offsets_ = own_offsets_;
    bytes_ = own_bytes_;
    label_values_ = own_label_values_;
    CountSamples();
    fingerprint_ = Fingerprint();
  }

  // Reads the content of the file, except its checksum. Returns whether it is sound.
  explicit Stored(std::unique_ptr<const MappedFile> file) : mapped_(std::move(file)) {}
  bool Parse() {
    const absl::string_view all = AsText(mapped_->bytes());
    Cursor cursor(all.substr(std::min(all.size(), kPrefixBytes)));
    slots_ = cursor.Take<int32_t>();
    labels_ = cursor.Take<int32_t>();
    const auto samples = cursor.Take<int64_t>();
    key_ = std::string(cursor.TakeText());
    for (auto left = cursor.Take<int64_t>(); left > 0 && !cursor.failed(); --left) {
      IndexedFile& file = files_.emplace_back();
      file.path = std::string(cursor.TakeText());
      file.bytes = cursor.Take<int64_t>();
      file.modified_ns = cursor.Take<int64_t>();
      file.samples = cursor.Take<int64_t>();
      if (file.samples < 0 || file.samples > kSamplesMax) return false;
    }
    fingerprint_ = std::string(cursor.TakeBytes(kFingerprintDigits));
    if (cursor.failed() || slots_ < 0 || slots_ > kSlotsMax || labels_ < 0 ||
        labels_ > kLabelsMax || samples < 0 || samples > kSamplesMax) {
      return false;
    }
    while (!cursor.failed() && (all.size() - cursor.left()) % 8 != 0) cursor.TakeBytes(1);
    offsets_ = cursor.TakeNumbers<int64_t>(samples * slots_);
    bytes_ = cursor.TakeNumbers<int32_t>(samples * slots_);
    label_values_ = cursor.TakeNumbers<int32_t>(samples * labels_);
    CountSamples();
    return !cursor.failed() && cursor.left() == 0 && samples_ == samples &&
           std::ranges::all_of(offsets_, [](int64_t offset) { return offset >= 0; }) &&
           std::ranges::all_of(bytes_, [](int32_t bytes) { return bytes <= kPlaceBytesMax; });
  }

 private:
  void CountSamples() {
    for (const IndexedFile& file : files_) {
      first_samples_.push_back(samples_);
      samples_ += file.samples;
    }
  }

  std::string Fingerprint() const {
    std::string facts = "muster-fingerprint-01";
    Append<int32_t>(slots_, facts);
    Append<int32_t>(labels_, facts);
    for (const IndexedFile& file : files_) {
      AppendText(std::filesystem::path(file.path).filename().string(), facts);
      Append(file.bytes, facts);
      Append(file.samples, facts);
    }
    Sha256 hash;
    hash.Add(facts);
    hash.Add(AsText(bytes_));
    hash.Add(AsText(label_values_));
    return HashDigits(hash);
  }

  std::vector<int64_t> own_offsets_;
  std::vector<int32_t> own_bytes_;
  std::vector<int32_t> own_label_values_;
  // Save() never changes a file in place, so nothing shrinks it while it is mapped.
  std::unique_ptr<const MappedFile> mapped_;
};

RecordIndex::Builder::Builder(std::string key, int slots, int labels)
    : key_(std::move(key)), slots_(slots), labels_(labels) {
  CHECK(0 <= slots && slots <= kSlotsMax) << slots;
  CHECK(0 <= labels && labels <= kLabelsMax) << labels;
}

void RecordIndex::Builder::AddFile(std::string path, int64_t bytes, int64_t modified_ns) {
  files_.push_back({.path = std::move(path), .bytes = bytes, .modified_ns = modified_ns});
}

void RecordIndex::Builder::Add(absl::Span<const Run> places, absl::Span<const int32_t> labels) {
  CHECK(!files_.empty()) << "AddFile() comes first";
  CHECK_EQ(places.size(), slots_);
  CHECK_EQ(labels.size(), labels_);
  ++files_.back().samples;
  for (const Run& place : places) {
    const bool is_there = place.bytes >= 0;
    CHECK(place.bytes <= kPlaceBytesMax && place.offset >= 0) << place.bytes << " " << place.offset;
    offsets_.push_back(is_there ? place.offset : 0);
    bytes_.push_back(is_there ? place.bytes : -1);
  }
  label_values_.insert(label_values_.end(), labels.begin(), labels.end());
}

std::shared_ptr<const RecordIndex> RecordIndex::Builder::Build() && {
  // A vector that has grown may keep twice the memory that it needs.
  offsets_.shrink_to_fit();
  bytes_.shrink_to_fit();
  label_values_.shrink_to_fit();
  return std::make_shared<Stored>(std::move(key_), slots_, labels_, std::move(files_),
                                  std::move(offsets_), std::move(bytes_), std::move(label_values_));
}

absl::StatusOr<std::shared_ptr<const RecordIndex>> RecordIndex::Load(
    const std::string& folder, absl::string_view key, absl::Span<const IndexedFile> files) {
  const std::string path = PathOfIndex(folder, key, files);
  auto other = [&](absl::string_view why) {
    return absl::NotFoundError(absl::StrCat(path, ": ", why));
  };
  // The folder is the worker's own, so it may lie outside of the data roots.
  const OpenedFile opened = OpenRegularFile(path);
  if (opened.descriptor < 0) {
    return other(opened.error_number == 0 ? "is not a regular file"
                                          : std::strerror(opened.error_number));
  }
  auto file = MappedFile::Map(opened.descriptor, path, "index");
  if (!file.ok()) return absl::NotFoundError(file.status().message());
  const absl::string_view bytes = AsText((*file)->bytes());
  Cursor prefix(bytes);
  if (prefix.TakeBytes(kMagic.size()) != kMagic) return other("is of another format");
  const auto crc = prefix.Take<uint32_t>();
  if (prefix.Take<uint32_t>() != 0 || prefix.failed() ||
      crc != Crc32c(AsBytes(bytes.substr(kPrefixBytes)))) {
    return other("the checksum differs");
  }
  const auto index = std::make_shared<Stored>(*std::move(file));
  if (!index->Parse()) return other("is damaged");
  if (index->key_ != key) return other("is for another key");
  if (!std::equal(files.begin(), files.end(), index->files_.begin(), index->files_.end(),
                  AreSame)) {
    return other("is for files of another size or time");
  }
  return index;
}

absl::Status RecordIndex::Save(const std::string& folder) const {
  const std::string path = PathOfIndex(folder, key_, files_);
  auto fault = [&](int error_number) {
    return absl::UnavailableError(
        absl::StrCat(path, ": cannot be written: ", std::strerror(error_number)));
  };
  std::string head;
  Append<int32_t>(slots_, head);
  Append<int32_t>(labels_, head);
  Append(samples_, head);
  AppendText(key_, head);
  Append<int64_t>(files_.size(), head);
  for (const IndexedFile& file : files_) {
    AppendText(file.path, head);
    Append(file.bytes, head);
    Append(file.modified_ns, head);
    Append(file.samples, head);
  }
  head += fingerprint_;
  while ((kPrefixBytes + head.size()) % 8 != 0) head += '\0';
  const absl::string_view parts[] = {head, AsText(offsets_), AsText(bytes_), AsText(label_values_)};
  uint32_t crc = 0;
  for (const absl::string_view part : parts) crc = Crc32c(AsBytes(part), crc);
  std::string prefix(kMagic);
  Append(crc, prefix);
  Append<uint32_t>(0, prefix);

  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return fault(error.value());
  std::string unfinished = path + ".XXXXXX";
  const int file = mkostemp(unfinished.data(), O_CLOEXEC);
  if (file < 0) return fault(errno);
  int error_number = WriteAll(file, prefix);
  for (const absl::string_view part : parts) {
    if (error_number == 0) error_number = WriteAll(file, part);
  }
  // The processes of other users on this host may share the index.
  if (error_number == 0 && (fchmod(file, 0644) != 0 || fsync(file) != 0)) error_number = errno;
  if (close(file) != 0 && error_number == 0) error_number = errno;
  if (error_number == 0 && rename(unfinished.c_str(), path.c_str()) != 0) error_number = errno;
  if (error_number == 0) return absl::OkStatus();
  unlink(unfinished.c_str());
  return fault(error_number);
}

int64_t RecordIndex::mean_sample_bytes() const {
  int64_t bytes = 0;
  for (const IndexedFile& file : files_) bytes += file.bytes;
  return bytes / samples_;
}

RecordIndex::Place RecordIndex::at(int64_t sample, int slot) const {
  CHECK(0 <= sample && sample < samples_) << sample << " of " << samples_;
  CHECK(0 <= slot && slot < slots_) << slot << " of " << slots_;
  // A file without samples has the first sample of the next one, so the last such file is meant.
  const auto next = std::upper_bound(first_samples_.begin(), first_samples_.end(), sample);
  const int64_t place = sample * slots_ + slot;
  return {.file = static_cast<int32_t>(next - first_samples_.begin() - 1),
          .bytes = bytes_[place],
          .offset = offsets_[place]};
}

int32_t RecordIndex::label(int64_t sample, int label) const {
  CHECK(0 <= sample && sample < samples_) << sample << " of " << samples_;
  CHECK(0 <= label && label < labels_) << label << " of " << labels_;
  return label_values_[sample * labels_ + label];
}

}  // namespace muster
