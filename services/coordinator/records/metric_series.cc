#include "services/coordinator/records/metric_series.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "lib/limits/limits.h"
#include "lib/status/status.h"
#include "lib/suggestion/suggestion.h"

namespace muster {
namespace {

constexpr int kStepColumns = 5;
constexpr int kEvaluationColumns = 2;
constexpr int kColumns = kStepColumns + kEvaluationColumns;
constexpr int64_t kReadBytes = 1 << 20;

constexpr std::array<double, kColumns> AllAbsent() {
  std::array<double, kColumns> values{};
  values.fill(kAbsent);
  return values;
}

// One line of the log. A missing number is kAbsent, and null is NaN.
struct Row {
  std::optional<int64_t> step;
  std::array<double, kColumns> values = AllAbsent();
  double time = std::nan("");
  bool is_evaluation = false;
};

int ColumnOf(absl::string_view name) {
  const std::vector<std::string>& names = MetricSeries::Names();
  return static_cast<int>(absl::c_find(names, name) - names.begin());
}

// Parses a line of MetricsLog: an object of names with numbers, null or true, without spaces. A
// general parser takes ten times as long, and parsing dominates the first read of a long log.
std::optional<Row> ParseLine(absl::string_view line) {
  Row row;
  if (!absl::ConsumePrefix(&line, "{")) return std::nullopt;
  while (absl::ConsumePrefix(&line, "\"")) {
    const size_t quote = line.find("\":");
    if (quote == absl::string_view::npos) return std::nullopt;
    const absl::string_view name = line.substr(0, quote);
    line.remove_prefix(quote + 2);
    row.is_evaluation |= MetricSeries::IsEvaluation(name);
    // The metrics of programs are last, and have no series.
    if (absl::StartsWith(line, "{")) {
      return row.step && absl::EndsWith(line, "}}") ? std::optional(row) : std::nullopt;
    }
    if (name == "step") {
      int64_t step = 0;
      const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), step);
      if (error != std::errc() || step < 0) return std::nullopt;
      row.step = step;
      line.remove_prefix(end - line.data());
    } else if (absl::ConsumePrefix(&line, "null")) {
      if (const int column = ColumnOf(name); column < kColumns) row.values[column] = std::nan("");
    } else if (!absl::ConsumePrefix(&line, "true") && !absl::ConsumePrefix(&line, "false")) {
      double value = 0;
      const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
      if (error != std::errc() && error != std::errc::result_out_of_range) return std::nullopt;
      if (const int column = ColumnOf(name); column < kColumns) row.values[column] = value;
      if (name == "time") row.time = value;
      line.remove_prefix(end - line.data());
    }
    if (line == "}") return row.step ? std::optional(row) : std::nullopt;
    if (!absl::ConsumePrefix(&line, ",")) return std::nullopt;
  }
  return std::nullopt;
}

absl::Status FileError(const std::string& path) {
  return WithReason(absl::ErrnoToStatus(errno, path), "METRICS_LOG_FAILED");
}

// Calls `visit` with each finished line in [begin, end) and its offset, until it returns false.
// Returns the offset of the first line that was not visited. Skips a line that is longer than a
// block, because MetricsLog does not write such lines.
absl::StatusOr<int64_t> VisitLines(int file, const std::string& path, int64_t begin, int64_t end,
                                   absl::FunctionRef<bool(int64_t, absl::string_view)> visit) {
  std::string block(std::min(kReadBytes, end - begin), '\0');
  while (begin < end) {
    const int64_t wanted = std::min(std::ssize(block), end - begin);
    const ssize_t got = pread(file, block.data(), wanted, begin);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path);
    if (got == 0) break;  // the file was truncated meanwhile
    absl::string_view text(block.data(), got);
    int64_t line_begin = begin;
    for (size_t newline; (newline = text.find('\n')) != absl::string_view::npos;) {
      if (!visit(line_begin, text.substr(0, newline))) return line_begin;
      text.remove_prefix(newline + 1);
      line_begin += static_cast<int64_t>(newline) + 1;
    }
    if (line_begin == begin) {
      if (got < wanted || begin + got == end) break;  // the last line is unfinished
      line_begin = begin + got;
    }
    begin = line_begin;
  }
  return begin;
}

std::string KnownNames() { return absl::StrJoin(MetricSeries::Names(), ", "); }

absl::Status Check(const SeriesRequest& request) {
  auto invalid = [](absl::string_view message) {
    return WithReason(absl::InvalidArgumentError(message), "INVALID_REQUEST");
  };
  // Each name becomes a curve of its own in the answer, even if it is repeated.
  if (request.names.size() > MetricSeries::Names().size()) {
    return invalid(absl::StrCat("names: ", request.names.size(),
                                " series are asked for; there are ", MetricSeries::Names().size()));
  }
  for (const std::string& name : request.names) {
    if (absl::c_count(request.names, name) > 1) {
      return invalid(
          absl::StrCat("names: '", name.substr(0, limits::kNameBytesMax), "' is asked for twice"));
    }
    if (absl::c_linear_search(MetricSeries::Names(), name)) continue;
    const std::string nearest = NearestName(name, MetricSeries::Names());
    return invalid(absl::StrCat("names: there is no series '", name, "'",
                                nearest.empty() ? absl::StrCat("; there are ", KnownNames())
                                                : absl::StrCat("; did you mean ", nearest, "?")));
  }
  if (request.from < 0 || request.to < request.from) {
    return invalid(absl::StrCat("from, to: [", request.from, ", ", request.to,
                                "] is not a range of steps; steps count from 0"));
  }
  if (request.points < 1 || request.points > MetricSeries::kPointsMax) {
    return invalid(absl::StrCat("points: must be 1 to ", MetricSeries::kPointsMax, " (is ",
                                request.points, ")"));
  }
  return absl::OkStatus();
}

// Returns the points of one column. Merges neighboring buckets so that there are at most
// `points_max`. Steps without this number have no point.
std::vector<SeriesPoint> PointsOf(const MetricPyramid& pyramid, MetricPyramid::Slice slice,
                                  int column, int64_t points_max) {
  const int64_t stride = std::max<int64_t>(1, (slice.size() + points_max - 1) / points_max);
  std::vector<SeriesPoint> points;
  points.reserve((slice.size() + stride - 1) / stride);
  for (int64_t begin = slice.begin; begin < slice.end; begin += stride) {
    const int64_t end = std::min(begin + stride, slice.end);
    const MetricPyramid::Bucket& first = pyramid.buckets()[begin];
    const MetricPyramid::Bucket& last = pyramid.buckets()[end - 1];
    SeriesPoint point{.first_step = first.first_step,
                      .last_step = last.last_step,
                      .values = pyramid.Range(begin, column),
                      .first_time = first.first_time,
                      .last_time = last.last_time};
    for (int64_t i = begin + 1; i < end; ++i) point.values.Append(pyramid.Range(i, column));
    if (!IsAbsent(point.values.last)) points.push_back(point);
  }
  return points;
}

}  // namespace

const std::vector<std::string>& MetricSeries::Names() {
  static const auto* const kNames = new std::vector<std::string>{
      "loss",       "gradient_norm",   "learning_rate",      "samples_per_second",
      "loss_scale", "evaluation_loss", "evaluation_accuracy"};
  return *kNames;
}

bool MetricSeries::IsEvaluation(absl::string_view name) {
  return absl::StartsWith(name, "evaluation_");
}

// The pyramids of one log, as far as it has been read. Not thread-safe.
class MetricSeries::Log {
 public:
  explicit Log(std::string path) : path_(std::move(path)) {}

  // Reads what was appended since the last call.
  absl::Status Update(int file) {
    struct stat status;
    if (fstat(file, &status) != 0) return FileError(path_);
    if (status.st_ino != inode_ || status.st_size < read_) *this = Log(path_, status.st_ino);
    ASSIGN_OR_RETURN(read_, VisitLines(file, path_, read_, status.st_size,
                                       [this](int64_t offset, absl::string_view line) {
                                         Take(offset, line);
                                         return true;
                                       }));
    return absl::OkStatus();
  }

  absl::StatusOr<JobSeries> Answer(int file, const SeriesRequest& request) const {
    JobSeries answer;
    if (const auto buckets = steps_.buckets(); !buckets.empty()) {
      answer.first_step = buckets.front().first_step;
      answer.last_step = buckets.back().last_step;
    } else {
      answer.first_step = -1;
    }
    const MetricPyramid* steps = &steps_;
    MetricPyramid closer(kStepColumns);
    if (IsTooCoarse(request)) {
      RETURN_IF_ERROR(ReadCloser(file, request, closer));
      steps = &closer;
    }
    for (const std::string& name : request.names.empty() ? Names() : request.names) {
      const bool is_evaluation = IsEvaluation(name);
      const MetricPyramid& pyramid = is_evaluation ? evaluations_ : *steps;
      const int column = ColumnOf(name) - (is_evaluation ? kStepColumns : 0);
      answer.series.push_back({name, PointsOf(pyramid, pyramid.Find(request.from, request.to),
                                              column, request.points)});
    }
    return answer;
  }

  // Counts empty logs, too, because there may be many.
  int64_t memory_bytes() const {
    constexpr int64_t kEmptyBytes = 1 << 10;
    return kEmptyBytes + steps_.memory_bytes() + evaluations_.memory_bytes();
  }

 private:
  Log(std::string path, ino_t inode) : path_(std::move(path)), inode_(inode) {}

  void Take(int64_t offset, absl::string_view line) {
    const std::optional<Row> row = ParseLine(line);
    if (!row) return;
    const auto all = absl::MakeConstSpan(row->values);
    if (row->is_evaluation) {
      evaluations_.Add(*row->step, offset, all.subspan(kStepColumns), row->time);
    } else {
      steps_.Add(*row->step, offset, all.first(kStepColumns), row->time);
    }
  }

  // Returns true if the file has more detail than the pyramid and the cost of reading it is
  // bounded.
  bool IsTooCoarse(const SeriesRequest& request) const {
    if (steps_.rows_per_bucket() == 1) return false;
    const MetricPyramid::Slice slice = steps_.Find(request.from, request.to);
    return slice.size() > 0 && slice.size() < request.points &&
           slice.size() * steps_.rows_per_bucket() <= kStepsReadMax + 2 * steps_.rows_per_bucket();
  }

  absl::Status ReadCloser(int file, const SeriesRequest& request, MetricPyramid& closer) const {
    const MetricPyramid::Slice slice = steps_.Find(request.from, request.to);
    const MetricPyramid::Bucket& first = steps_.buckets()[slice.begin];
    return VisitLines(file, path_, first.offset, read_,
                      [&](int64_t offset, absl::string_view line) {
                        const std::optional<Row> row = ParseLine(line);
                        if (!row || row->is_evaluation || *row->step < request.from) return true;
                        if (*row->step > request.to) return false;
                        closer.Add(*row->step, offset,
                                   absl::MakeConstSpan(row->values).first(kStepColumns), row->time);
                        return true;
                      })
        .status();
  }

  std::string path_;
  ino_t inode_ = 0;
  int64_t read_ = 0;  // bytes of complete lines
  MetricPyramid steps_{kStepColumns};
  MetricPyramid evaluations_{kEvaluationColumns};
};

std::shared_ptr<MetricSeries::Log> MetricSeries::Take(const std::string& path) {
  absl::MutexLock lock(&mu_);
  auto is_free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = by_path_.find(path);
    return found == by_path_.end() || !found->second->busy;
  };
  mu_.Await(absl::Condition(&is_free));
  auto found = by_path_.find(path);
  if (found == by_path_.end()) {
    slots_.push_front({.path = path, .log = std::make_shared<Log>(path)});
    found = by_path_.emplace(path, slots_.begin()).first;
  } else {
    slots_.splice(slots_.begin(), slots_, found->second);
  }
  found->second->busy = true;
  return found->second->log;
}

void MetricSeries::GiveBack(const std::string& path, bool forget) {
  absl::MutexLock lock(&mu_);
  const auto found = by_path_.find(path);
  Slot& slot = *found->second;
  memory_bytes_ -= slot.memory_bytes;
  if (forget) {
    slots_.erase(found->second);
    by_path_.erase(found);
    return;
  }
  slot.busy = false;
  slot.memory_bytes = slot.log->memory_bytes();
  memory_bytes_ += slot.memory_bytes;
  ForgetOld();
}

// Keeps the first slot, which was just used.
void MetricSeries::ForgetOld() {
  for (auto it = std::prev(slots_.end());
       memory_bytes_ > memory_bytes_max_ && it != slots_.begin();) {
    const auto slot = it--;
    if (slot->busy) continue;
    memory_bytes_ -= slot->memory_bytes;
    by_path_.erase(slot->path);
    slots_.erase(slot);
  }
}

int64_t MetricSeries::memory_bytes() const {
  absl::MutexLock lock(&mu_);
  return memory_bytes_;
}

absl::StatusOr<JobSeries> MetricSeries::Read(const std::string& path,
                                             const SeriesRequest& request) {
  RETURN_IF_ERROR(Check(request));
  const std::shared_ptr<Log> log = Take(path);
  bool forget = true;
  const auto give_back = absl::MakeCleanup([&] { GiveBack(path, forget); });
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    if (errno != ENOENT) return FileError(path);
    return Log(path).Answer(file, request);
  }
  const auto close_file = absl::MakeCleanup([file] { close(file); });
  RETURN_IF_ERROR(log->Update(file));
  forget = false;
  return log->Answer(file, request);
}

}  // namespace muster
