#include "lib/data/source/substitution_dataset.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "glog/logging.h"
#include "lib/data/order/random_stream.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kLoggedMax = 10;
constexpr int64_t kBytesCountedAtOnce = int64_t{16} << 20;

// Whether a replaced sample counts toward data.damaged_max.
enum class Limit { kCounted, kIgnored };

bool IsDamaged(const absl::Status& status) {
  return !status.ok() && ReasonOf(status) == "DATA_DAMAGED";
}

// Returns `status` with more text behind the message. Code, payloads and reason stay.
absl::Status WithRemedy(const absl::Status& status, const std::string& remedy) {
  absl::Status longer(status.code(), absl::StrCat(status.message(), "; ", remedy));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { longer.SetPayload(url, payload); });
  return longer;
}

class SubstitutionDataset : public Dataset {
 public:
  SubstitutionDataset(std::unique_ptr<const Dataset> dataset, const v1::Graph& graph, uint64_t seed,
                      int64_t damaged_max)
      : dataset_(std::move(dataset)),
        row_bytes_(RowBytes(*dataset_, graph)),
        seed_(seed),
        damaged_max_(damaged_max) {}

  int64_t samples() const override { return dataset_->samples(); }
  int64_t evaluation_samples() const override { return dataset_->evaluation_samples(); }
  std::string fingerprint() const override { return dataset_->fingerprint(); }
  std::vector<int64_t> part_samples() const override { return dataset_->part_samples(); }
  int64_t mean_stored_bytes() const override { return dataset_->mean_stored_bytes(); }
  bool is_slow() const override { return dataset_->is_slow(); }
  absl::Span<const kernels::ByteValues> row_values(int input) const override {
    return dataset_->row_values(input);
  }

  int64_t substituted() const override {
    absl::MutexLock lock(&mu_);
    return substituted_;
  }

  void WillRead(int64_t batch, absl::Span<const SampleRef> samples) const override {
    dataset_->WillRead(batch, samples);
  }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    return Replace(dataset_->Read(samples, rows), samples, rows, Limit::kCounted);
  }

  absl::Status ReadInOrder(int64_t batch, absl::Span<const SampleRef> samples,
                           Rows rows) const override {
    return Replace(dataset_->ReadInOrder(batch, samples, rows), samples, rows, Limit::kCounted);
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    return dataset_->ReadEvaluation(first, count, rows);
  }

  // An index has the target of a damaged sample, not of its substitute. So samples are read if
  // there may be substitutes. All their inputs are, as by the worker that trains on them: damage in
  // any of them replaces the sample.
  absl::StatusOr<int64_t> CountTargets(const Target& target,
                                       absl::Span<const SampleRef> samples) const override {
    if (damaged_max_ == 0) return dataset_->CountTargets(target, samples);
    const int64_t sample_bytes = std::accumulate(row_bytes_.begin(), row_bytes_.end(), int64_t{0});
    const size_t at_once = std::max<int64_t>(1, kBytesCountedAtOnce / sample_bytes);
    std::vector<std::vector<std::byte>> memory(row_bytes_.size());
    std::vector<absl::Span<std::byte>> rows(row_bytes_.size());
    int64_t counted = 0;
    for (; !samples.empty(); samples.remove_prefix(std::min(at_once, samples.size()))) {
      const auto some = samples.first(std::min(at_once, samples.size()));
      for (size_t input = 0; input < rows.size(); ++input) {
        memory[input].resize(some.size() * row_bytes_[input]);
        rows[input] = absl::MakeSpan(memory[input]);
      }
      RETURN_IF_ERROR(Replace(dataset_->Read(some, rows), some, rows, Limit::kIgnored));
      counted += muster::CountTargets(target.use, rows[target.input]);
    }
    return counted;
  }
  absl::StatusOr<int64_t> CountEvaluationTargets(const Target& target, int64_t first,
                                                 int64_t count) const override {
    return dataset_->CountEvaluationTargets(target, first, count);
  }

 private:
  // Returns `read`, the status of reading `samples`. If one of them is damaged, reads each again,
  // or a substitute.
  absl::Status Replace(const absl::Status& read, absl::Span<const SampleRef> samples, Rows rows,
                       Limit limit) const {
    if (!IsDamaged(read)) return read;
    std::vector<absl::Span<std::byte>> row(rows.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      for (size_t input = 0; input < rows.size(); ++input) {
        const int64_t bytes = row_bytes_[input];
        if (!rows[input].empty()) row[input] = rows[input].subspan(i * bytes, bytes);
      }
      RETURN_IF_ERROR(ReadOne(samples[i], row, limit));
    }
    return absl::OkStatus();
  }

  absl::Status ReadOne(const SampleRef& sample, Rows row, Limit limit) const {
    const absl::Status damage = dataset_->Read({&sample, 1}, row);
    if (!IsDamaged(damage)) return damage;
    if (limit == Limit::kCounted) RETURN_IF_ERROR(Count(sample, damage));
    const auto [first, samples] = PartOf(sample.sample);
    for (int attempt = 0; attempt < kSubstitutesMax && samples > 1; ++attempt) {
      const SampleRef other = SubstituteFor(sample, attempt, seed_, first, samples);
      const absl::Status read = dataset_->Read({&other, 1}, row);
      if (!IsDamaged(read)) return read;
    }
    return WithRemedy(damage, absl::StrCat("so are all ", samples > 1 ? kSubstitutesMax : 0,
                                           " samples that could replace it: repair the data"));
  }

  // Counts a damaged sample once in each epoch. Returns an error if there are too many.
  absl::Status Count(const SampleRef& sample, const absl::Status& damage) const
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto [last, is_new] = last_epochs_.try_emplace(sample.sample, sample.epoch);
    // An earlier epoch is read again only after the job went back to a checkpoint.
    if (!is_new && sample.epoch <= last->second) return absl::OkStatus();
    int64_t& of_epoch = by_epoch_[sample.epoch];
    if (of_epoch >= damaged_max_) {
      if (is_new) last_epochs_.erase(last);
      const std::string used_up =
          absl::StrCat("this worker has replaced ", of_epoch, " damaged samples of epoch ",
                       sample.epoch, ", as many as data.damaged_max allows; ");
      return WithRemedy(
          damage,
          absl::StrCat(damaged_max_ > 0 ? used_up : "",
                       "correct the job file or the data (muster data verify lists all such "
                       "samples), or set a larger data.damaged_max, which lets each worker replace "
                       "that many samples of each epoch by others"));
    }
    last->second = sample.epoch;
    ++of_epoch;
    if (++substituted_ <= kLoggedMax) {
      LOG(WARNING) << "replacing sample " << sample.sample << " of epoch " << sample.epoch << ": "
                   << damage.message()
                   << (substituted_ == kLoggedMax ? "; later ones are not logged" : "");
    }
    return absl::OkStatus();
  }

  struct Part {
    int64_t first = 0;
    int64_t samples = 0;
  };
  // Returns the part of a mixture that has `sample`, or else all samples.
  Part PartOf(int64_t sample) const {
    Part part{0, dataset_->samples()};
    for (const int64_t samples : dataset_->part_samples()) {
      part.samples = samples;
      if (sample < part.first + samples) break;
      part.first += samples;
    }
    return part;
  }

  const std::unique_ptr<const Dataset> dataset_;
  const std::vector<int64_t> row_bytes_;  // by graph input
  const uint64_t seed_;
  const int64_t damaged_max_;
  mutable absl::Mutex mu_;
  // The last epoch in which a damaged sample counted, by sample.
  mutable absl::flat_hash_map<int64_t, int64_t> last_epochs_ ABSL_GUARDED_BY(mu_);
  mutable absl::flat_hash_map<int64_t, int64_t> by_epoch_ ABSL_GUARDED_BY(mu_);  // replaced
  mutable int64_t substituted_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace

SampleRef SubstituteFor(SampleRef damaged, int attempt, uint64_t seed, int64_t first,
                        int64_t samples) {
  CHECK(samples >= 2 && 0 <= damaged.sample - first && damaged.sample - first < samples)
      << damaged.sample;
  const uint64_t number =
      RandomNumber(seed, StreamOf(RandomStream::kSubstitute, damaged.epoch),
                   static_cast<uint64_t>(damaged.sample) * kSubstitutesMax + attempt);
  const auto step = 1 + static_cast<int64_t>(number % static_cast<uint64_t>(samples - 1));
  return {damaged.epoch, first + (damaged.sample - first + step) % samples};
}

std::unique_ptr<const Dataset> SubstituteDamaged(std::unique_ptr<const Dataset> dataset,
                                                 const v1::Graph& graph, uint64_t seed,
                                                 int64_t damaged_max) {
  return std::make_unique<SubstitutionDataset>(std::move(dataset), graph, seed, damaged_max);
}

}  // namespace muster
