#include "services/coordinator/records/metrics_writer.h"

#include <glog/logging.h>

#include <iterator>
#include <utility>

#include "lib/concurrency/steady_wait.h"
#include "lib/status/status.h"

namespace muster {
namespace {

template <typename T>
void AppendAll(std::vector<T>& to, std::vector<T> from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
}

// Puts `from` back before what was added meanwhile.
template <typename T>
void Restore(std::vector<T>& to, std::vector<T> from) {
  AppendAll(from, std::exchange(to, {}));
  to = std::move(from);
}

}  // namespace

MetricsWriter::MetricsWriter(Options options)
    : options_(std::move(options)), thread_([this] { Run(); }) {}

MetricsWriter::~MetricsWriter() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void MetricsWriter::Append(uint64_t job, const std::string& path, std::vector<StepSummary> steps,
                           std::vector<EvaluationSummary> evaluations, const RecordsBefore& up_to) {
  absl::MutexLock lock(&mu_);
  Log& log = logs_[job];
  log.path = path;
  log.closing = false;
  AppendAll(log.pending.steps, std::move(steps));
  AppendAll(log.pending.evaluations, std::move(evaluations));
  log.up_to = up_to;
  log.told = false;
  work_ = true;
}

void MetricsWriter::Close(uint64_t job) {
  absl::MutexLock lock(&mu_);
  const auto log = logs_.find(job);
  if (log == logs_.end()) return;
  log->second.closing = true;
  work_ = true;
}

void MetricsWriter::Discard(uint64_t job) {
  absl::MutexLock lock(&mu_);
  const auto found = logs_.find(job);
  if (found == logs_.end()) return;
  Log& log = found->second;
  log.discarding = true;
  auto idle = [&log] { return !log.writing; };
  mu_.Await(absl::Condition(&idle));
  logs_.erase(found);
}

absl::Status MetricsWriter::Trouble(uint64_t job) const {
  absl::MutexLock lock(&mu_);
  const auto log = logs_.find(job);
  return log == logs_.end() ? absl::OkStatus() : log->second.trouble;
}

void MetricsWriter::Settle() {
  absl::MutexLock lock(&mu_);
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !work_ && !working_; };
  mu_.Await(absl::Condition(&idle));
}

absl::Status MetricsWriter::Write(Log& log, const std::string& path, const Pending& pending) {
  if (log.file == nullptr) {
    ASSIGN_OR_RETURN(log.file, MetricsLog::Open(path, MetricsLog::Evaluations::kAtTheEnd));
  }
  return log.file->Append(pending.steps, pending.evaluations);
}

bool MetricsWriter::WritePending(Log& log) {
  if (!log.pending.any()) return true;
  Pending pending = std::exchange(log.pending, {});
  const std::string path = log.path;
  log.writing = true;
  // Append() must not wait for the disk. `writing` keeps Discard() from closing the file meanwhile.
  mu_.Unlock();
  const absl::Status written = Write(log, path, pending);
  mu_.Lock();
  log.writing = false;
  const bool was_well = std::exchange(log.trouble, written).ok();
  if (written.ok()) {
    LOG_IF(INFO, !was_well) << path << ": steps are being recorded again";
    return true;
  }
  LOG_IF(ERROR, was_well) << "steps are not recorded, nor acknowledged to workers, until the disk "
                             "takes them: "
                          << written;
  Restore(log.pending.steps, std::move(pending.steps));
  Restore(log.pending.evaluations, std::move(pending.evaluations));
  return false;
}

bool MetricsWriter::WriteAll(bool again) {
  bool all = true;
  std::vector<uint64_t> jobs;  // by number, because the map may change while the lock is released
  for (const auto& [job, log] : logs_) jobs.push_back(job);
  for (const uint64_t job : jobs) {
    const auto found = logs_.find(job);
    if (found == logs_.end() || found->second.discarding) continue;
    Log& log = found->second;
    if (!again && !log.trouble.ok()) {
      all = false;
      continue;
    }
    const RecordsBefore up_to = log.up_to;  // later records are not part of this write
    if (!WritePending(log)) {
      all = false;
      continue;
    }
    if (log.discarding) continue;
    if (!log.told && !log.closing) {
      log.told = log.up_to == up_to;
      mu_.Unlock();
      options_.durable(job, up_to);
      mu_.Lock();
    }
    // Looks the job up again: `log` may have been discarded while the lock was released.
    const auto now = logs_.find(job);
    if (now != logs_.end() && now->second.closing && !now->second.pending.any()) logs_.erase(now);
  }
  return all;
}

void MetricsWriter::Run() {
  absl::MutexLock lock(&mu_);
  auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return work_ || stopping_; };
  bool all = true;
  absl::Duration tried = SteadyNow();
  for (;;) {
    AwaitFor(&mu_, absl::Condition(&due),
             all ? absl::InfiniteDuration() : tried + options_.retry - SteadyNow());
    const bool last = stopping_;
    work_ = false;
    working_ = true;
    const bool again = all || last || SteadyNow() - tried >= options_.retry;
    if (again) tried = SteadyNow();
    all = WriteAll(again);
    working_ = false;
    if (last) return;
  }
}

}  // namespace muster
