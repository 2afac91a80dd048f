#include "lib/data/source/text_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "kernels/philox.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/fingerprint.h"
#include "lib/data/labelled_rows.h"
#include "lib/data/order/random_stream.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockBytes = 2048;
constexpr int64_t kTextBytesMax = int64_t{1} << 36;  // the text is held in memory
constexpr int64_t kByteValues = 256;
constexpr char kPathField[] = "data.text.path";
constexpr char kHoldoutField[] = "data.text.holdout";

// Checks that every byte is an id of the model's vocabulary.
absl::Status CheckBytes(const fs::path& path, absl::string_view text, int64_t vocabulary) {
  if (vocabulary >= kByteValues) return absl::OkStatus();
  const auto wrong = std::find_if(text.begin(), text.end(), [&](char byte) {
    return static_cast<unsigned char>(byte) >= vocabulary;
  });
  if (wrong == text.end()) return absl::OkStatus();
  const int byte = static_cast<unsigned char>(*wrong);
  return DataInvalid(
      kPathField, absl::StrCat(path.native(), ": byte ", byte, " at offset ", wrong - text.begin(),
                               " does not fit the model's vocabulary of ", vocabulary,
                               ": set model.zoo.args.vocabulary to ", kByteValues));
}

absl::Status AppendFile(const fs::path& path, int64_t vocabulary, int64_t held_bytes_max,
                        std::string& text) {
  ASSIGN_OR_RETURN(const auto file, DataFile::Open(path.native(), kPathField));
  const int64_t bytes = file->bytes();
  if (bytes > kTextBytesMax - std::ssize(text)) {
    return DataInvalid(kPathField, absl::StrCat(path.native(), ": the text is longer than ",
                                                kTextBytesMax, " bytes"));
  }
  if (const int64_t left = held_bytes_max - std::ssize(text); bytes > left) {
    return DataTooLarge(kPathField, path.native(), left);
  }
  const size_t before = text.size();
  text.resize(before + bytes);
  RETURN_IF_ERROR(
      file->Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()) + before, bytes)));
  return CheckBytes(path, absl::string_view(text).substr(before), vocabulary);
}

// Returns the regular files of a folder in name order. Links to files that are in the folder anyway
// are skipped, so that each text occurs once.
absl::StatusOr<std::vector<fs::path>> FilesOf(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) return DataPathFault(kPathField, folder.native(), error.value());
  std::sort(entries.begin(), entries.end());

  std::set<fs::path> texts;
  for (const fs::path& entry : entries) {
    if (!fs::is_symlink(entry, error)) texts.insert(fs::canonical(entry, error));
    if (error) return DataPathFault(kPathField, entry.native(), error.value());
  }
  std::vector<fs::path> files;
  for (const fs::path& entry : entries) {
    const bool regular = fs::is_regular_file(entry, error);
    if (error) return DataPathFault(kPathField, entry.native(), error.value());
    if (!regular) continue;
    if (fs::is_symlink(entry, error) && !texts.insert(fs::canonical(entry, error)).second) continue;
    files.push_back(entry);
  }
  return files;
}

struct WholeText {
  std::string text;
  std::string fingerprint;
};

absl::StatusOr<WholeText> ReadText(const std::string& path, int64_t vocabulary,
                                   int64_t held_bytes_max) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) return DataPathFault(kPathField, path, error.value());
  std::vector<fs::path> files = {path};
  if (fs::is_directory(status)) {
    ASSIGN_OR_RETURN(files, FilesOf(path));
    if (files.empty()) {
      return DataTooSmall(kPathField, absl::StrCat(path, ": the folder holds no regular file"));
    }
  } else if (!fs::is_regular_file(status)) {
    return DataInvalid(kPathField, absl::StrCat(path, ": neither a regular file nor a folder"));
  }
  std::string text;
  std::vector<std::string> facts = {"text"};
  for (const fs::path& file : files) {
    RETURN_IF_ERROR(AppendFile(file, vocabulary, held_bytes_max, text));
    facts.push_back(file.filename().string());
    facts.push_back(absl::StrCat(text.size()));  // where the file ends
  }
  return WholeText{std::move(text), FingerprintOf(facts)};
}

struct SplitText {
  std::string training;
  std::string held_out;  // whole blocks; the last may be shorter
};

SplitText Split(std::string text, double holdout) {
  const double period = std::round(1 / holdout);
  if (!(period < static_cast<double>(kTextBytesMax))) return {.training = std::move(text)};
  const int64_t every = static_cast<int64_t>(period);
  const absl::string_view whole = text;
  SplitText split;
  for (int64_t block = 0; block * kBlockBytes < whole.size(); ++block) {
    std::string& part = (block + 1) % every == 0 ? split.held_out : split.training;
    absl::StrAppend(&part, whole.substr(block * kBlockBytes, kBlockBytes));
  }
  return split;
}

class TextDataset : public Dataset {
 public:
  TextDataset(SplitText text, std::string fingerprint, int64_t window, uint64_t seed,
              LabelledRows rows)
      : text_(std::move(text)),
        fingerprint_(std::move(fingerprint)),
        window_(window),
        seed_(seed),
        rows_(std::move(rows)) {}

  // One less than the windows of the text, so that every shift fits: the last window's target ends
  // at samples * T + shift + 1 <= (samples + 1) * T.
  int64_t samples() const override { return text_.training.size() / window_ - 1; }

  int64_t evaluation_samples() const override {
    const int64_t bytes = text_.held_out.size(), rest = bytes % kBlockBytes;
    return bytes / kBlockBytes * WindowsOfBlock() + std::max<int64_t>(0, rest - 1) / window_;
  }

  std::string fingerprint() const override { return fingerprint_; }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CheckSizes(samples.size(), rows);
    for (size_t row = 0; row < samples.size(); ++row) {
      const auto [epoch, sample] = samples[row];
      CHECK(0 <= sample && sample < this->samples()) << sample;
      CopyWindow(text_.training, sample * window_ + ShiftOf(epoch), row, rows);
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CheckSizes(count, rows);
    CHECK(0 <= first && 0 <= count && count <= evaluation_samples() - first)
        << first << " + " << count << " of " << evaluation_samples();
    for (int64_t row = 0; row < count; ++row) {
      const int64_t block = (first + row) / WindowsOfBlock();
      const int64_t window = (first + row) % WindowsOfBlock();
      CopyWindow(text_.held_out, block * kBlockBytes + window * window_, row, rows);
    }
    return absl::OkStatus();
  }

 private:
  int64_t ShiftOf(int64_t epoch) const {
    const uint64_t stream = StreamOf(RandomStream::kTextShift, 0);
    return kernels::RandomWords(seed_, stream, epoch)[0] % window_;
  }

  int64_t WindowsOfBlock() const { return (kBlockBytes - 1) / window_; }

  void CheckSizes(size_t count, Rows rows) const {
    const size_t row_bytes = window_ * sizeof(int32_t);
    rows_.CheckSizes(rows, count, row_bytes, row_bytes);
  }

  void CopyWindow(const std::string& text, int64_t at, size_t row, Rows rows) const {
    CHECK_LT(at + window_, static_cast<int64_t>(text.size()));
    const absl::Span<std::byte> input = rows_.input(rows), target = rows_.target(rows);
    const size_t row_bytes = window_ * sizeof(int32_t);
    if (!input.empty()) Widen(text.data() + at, input.data() + row * row_bytes);
    if (!target.empty()) Widen(text.data() + at + 1, target.data() + row * row_bytes);
  }

  void Widen(const char* bytes, std::byte* ids) const {
    for (int64_t i = 0; i < window_; ++i) {
      const int32_t id = static_cast<unsigned char>(bytes[i]);
      std::memcpy(ids + i * sizeof(id), &id, sizeof(id));
    }
  }

  const SplitText text_;
  const std::string fingerprint_;
  const int64_t window_;  // T
  const uint64_t seed_;
  const LabelledRows rows_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenTextDataset(const v1::DataSpec& spec,
                                                               const v1::Graph& graph,
                                                               int64_t held_bytes_max) {
  const v1::GraphInput* input = FindInput(graph, "input");
  const int64_t window = input != nullptr && input->shape_size() == 2 ? input->shape(1) : 0;
  for (const char* name : {"input", "target"}) {
    if (window < 1 || !HasInput(graph, name, v1::DTYPE_I32, {-1, window})) {
      return DataInvalid("data.text",
                         absl::StrCat("the model's ", name, " is ", DescribeInput(graph, name),
                                      ", text gives i32[-1, T] as input and target"));
    }
  }
  const double holdout = spec.text().holdout();
  if (!(holdout >= 0 && holdout <= 0.5)) {
    return DataInvalid(kHoldoutField, absl::StrCat("must be in [0, 0.5] (is ", holdout, ")"));
  }
  RETURN_IF_ERROR(LabelledRows::Check(graph, "data.text"));
  LabelledRows rows(graph);
  const int64_t vocabulary = std::min(rows.input_use().limit, rows.target_use().limit);
  ASSIGN_OR_RETURN(WholeText whole, ReadText(spec.text().path(), vocabulary, held_bytes_max));
  SplitText text = Split(std::move(whole.text), holdout);
  if (text.training.size() / window < 2) {
    return DataTooSmall(kPathField,
                        absl::StrCat(spec.text().path(), ": ", text.training.size(),
                                     " bytes to train on are less than two contexts of ", window));
  }
  if (!text.held_out.empty() && window >= kBlockBytes) {
    return DataTooSmall(kHoldoutField,
                        absl::StrCat("blocks of ", kBlockBytes, " bytes hold no window of ", window,
                                     " and its target; set it to 0"));
  }
  return std::make_unique<TextDataset>(std::move(text), std::move(whole.fingerprint), window,
                                       spec.seed(), std::move(rows));
}

}  // namespace muster
