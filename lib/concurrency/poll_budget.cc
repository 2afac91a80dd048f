#include "lib/concurrency/poll_budget.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/concurrency/cpu_quota.h"

namespace muster {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds kAllowanceMax = milliseconds(10);
constexpr nanoseconds kLoadPeriod = milliseconds(2);  // reading the load takes about 2 us
constexpr nanoseconds kGapMax = microseconds(30);     // a turn takes about 1 us
constexpr nanoseconds kRestAfterGap = milliseconds(10);
constexpr nanoseconds kYieldPeriod = microseconds(10);
constexpr int kVainMax = 8;
constexpr int kTryEvery = 16;  // waits

int OnlineCpus() { return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))); }

// Parses "0.93 0.71 0.55 3/154 13599". Returns the number of runnable threads, or 0 if unknown.
int RunnableThreads(int load_fd) {
  char text[128];
  const ssize_t size = load_fd < 0 ? -1 : pread(load_fd, text, sizeof(text) - 1, 0);
  if (size <= 0) return 0;
  text[size] = '\0';
  const char* number = text;
  for (int field = 0; field < 3 && number != nullptr; ++field) {
    number = std::strchr(number, ' ');
    if (number != nullptr) ++number;
  }
  return number == nullptr ? 0 : std::atoi(number);
}

}  // namespace

double PollShare(double cpus, int busy_threads, int pollers) {
  if (cpus < 2 || pollers < 1) return 0;
  return std::clamp((cpus - busy_threads) / pollers, 0.0, 1.0);
}

absl::StatusOr<PollMode> ParsePollMode(absl::string_view word) {
  if (word == "auto") return PollMode::kAuto;
  if (word == "always") return PollMode::kAlways;
  if (word == "never") return PollMode::kNever;
  return absl::InvalidArgumentError(
      absl::StrCat("must be auto, always or never (is '", word, "')"));
}

PollBudgetOptions PollingOf(PollMode mode, int busy_threads, int pollers) {
  switch (mode) {
    case PollMode::kAuto:
      return {.share = PollShare(UsableCpuTime(), busy_threads, pollers)};
    case PollMode::kAlways:
      return {.poll_max = std::chrono::hours(1), .regardless = true};
    case PollMode::kNever:
      return {.share = 0};
  }
  return {};
}

PollBudget::PollBudget(PollBudgetOptions options)
    : options_(std::move(options)),
      machine_cpus_(options_.machine_cpus > 0 ? options_.machine_cpus : OnlineCpus()),
      load_fd_(open(options_.load_file.c_str(), O_RDONLY | O_CLOEXEC)),
      allowance_(kAllowanceMax) {}

PollBudget::~PollBudget() {
  if (load_fd_ >= 0) close(load_fd_);
}

bool PollBudget::Begin(Time now) {
  if (options_.regardless) {
    begin_ = turn_ = yield_ = now;
    return true;
  }
  if (options_.share <= 0) return false;
  Earn(now);
  if (allowance_ <= nanoseconds::zero() || now < rest_until_) return false;
  if (!WorthTrying() || Crowded(now)) return false;
  begin_ = turn_ = yield_ = now;
  return true;
}

bool PollBudget::MayPoll(Time now) {
  if (now - begin_ >= options_.poll_max) return false;
  if (options_.regardless) return true;
  const nanoseconds gap = now - std::exchange(turn_, now);
  if (gap > kGapMax) rest_until_ = now + kRestAfterGap;
  return now >= rest_until_ && now - begin_ < allowance_;
}

void PollBudget::End(Time now, bool held) {
  allowance_ -= now - begin_;
  vain_ = held ? 0 : vain_ + 1;
  skipped_ = 0;
}

bool PollBudget::YieldIsDue(Time now) {
  if (options_.regardless || now - yield_ < kYieldPeriod) return false;
  yield_ = now;
  return true;
}

void PollBudget::Earn(Time now) {
  const double elapsed = std::min<double>(static_cast<double>((now - earned_).count()), 1e9);
  allowance_ += nanoseconds(static_cast<int64_t>(options_.share * elapsed));
  allowance_ = std::min(allowance_, kAllowanceMax);
  earned_ = now;
}

bool PollBudget::Crowded(Time now) {
  if (now - load_read_ >= kLoadPeriod) {
    crowded_ = RunnableThreads(load_fd_) > machine_cpus_;
    load_read_ = now;
  }
  return crowded_;
}

bool PollBudget::WorthTrying() { return vain_ < kVainMax || ++skipped_ >= kTryEvery; }

}  // namespace muster
