#include "cli/data/verification.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

// Shares the samples of a data set among threads.
class SampleReader {
 public:
  SampleReader(const Dataset& dataset, const v1::Graph& graph, int64_t faults_max)
      : dataset_(dataset),
        row_bytes_(RowBytes(dataset, graph)),
        training_(dataset.samples()),
        all_(training_ + dataset.evaluation_samples()),
        faults_max_(faults_max) {}

  // Reads samples until none is left. Threads may call it at the same time.
  void Run() {
    std::vector<std::vector<std::byte>> memory;
    std::vector<absl::Span<std::byte>> rows;
    for (const int64_t bytes : row_bytes_) memory.emplace_back(bytes);
    for (auto& row : memory) rows.push_back(absl::MakeSpan(row));
    for (int64_t i; !has_failed_ && (i = next_++) < all_;) {
      const SampleRef sample{.epoch = 0, .sample = i};
      const absl::Status read = i < training_ ? dataset_.Read({&sample, 1}, rows)
                                              : dataset_.ReadEvaluation(i - training_, 1, rows);
      if (!read.ok()) Add(i, read);
    }
  }

  absl::StatusOr<Verification> Finish() {
    const absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    Verification verification{
        .samples = training_, .evaluation_samples = all_ - training_, .damaged = damaged_};
    for (const auto& [sample, fault] : faults_) verification.faults.push_back(fault);
    return verification;
  }

 private:
  void Add(int64_t sample, const absl::Status& status) {
    const absl::MutexLock lock(&mu_);
    if (ReasonOf(status) != "DATA_DAMAGED") {
      failure_.Update(status);
      has_failed_ = true;
      return;
    }
    ++damaged_;
    faults_.emplace(sample, std::string(status.message()));
    if (static_cast<int64_t>(faults_.size()) > faults_max_) faults_.erase(std::prev(faults_.end()));
  }

  const Dataset& dataset_;
  const std::vector<int64_t> row_bytes_;
  const int64_t training_;
  const int64_t all_;
  const int64_t faults_max_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<bool> has_failed_ = false;
  absl::Mutex mu_;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t damaged_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, std::string> faults_ ABSL_GUARDED_BY(mu_);  // by sample
};

}  // namespace

absl::StatusOr<Verification> Verify(const Dataset& dataset, const v1::Graph& graph,
                                    const VerifyOptions& options) {
  SampleReader reader(dataset, graph, options.faults_max);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < options.threads; ++i) threads.emplace_back([&] { reader.Run(); });
  }
  return reader.Finish();
}

}  // namespace muster::cli
