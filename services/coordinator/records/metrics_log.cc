#include "services/coordinator/records/metrics_log.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

// Size of the part that counts as the end of a log.
constexpr int64_t kEndBytes = 64 << 10;
constexpr int64_t kBlockBytes = 64 << 10;
// Size of the part that may not have been synced before a power cut. Append() syncs after each part
// of this size.
constexpr int64_t kUnsyncedBytesMax = 32 << 20;

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null";
}

// Returns the time of a line, if it is known.
std::string Time(absl::Time time) {
  if (time == absl::InfinitePast()) return "";
  return absl::StrFormat(",\"time\":%.3f", absl::ToDoubleSeconds(time - absl::UnixEpoch()));
}

std::string Quoted(const std::string& name) {
  using Json = nlohmann::json;
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Returns the metrics of a line, which must be last: MetricSeries reads no further.
std::string MetricsText(absl::string_view key, const MetricMeans& metrics) {
  std::string text = absl::StrCat(",\"", key, "\":{");
  for (const auto& [name, mean] : metrics) {
    absl::StrAppend(&text, text.back() == '{' ? "" : ",", Quoted(name), ":", Number(mean));
  }
  return text + "}";
}

double NumberOr(const nlohmann::json& line, const char* key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : std::nan("");
}

// Returns nullopt if the line has no such number, and NaN for null.
std::optional<double> NumberIn(const nlohmann::json& line, const char* key) {
  return line.contains(key) ? std::optional(NumberOr(line, key)) : std::nullopt;
}

int64_t IntegerOr(const nlohmann::json& line, const char* key, int64_t otherwise) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number_integer() ? it->get<int64_t>() : otherwise;
}

absl::Time TimeIn(const nlohmann::json& line) {
  const double seconds = NumberOr(line, "time");
  return std::isnan(seconds) ? absl::InfinitePast() : absl::UnixEpoch() + absl::Seconds(seconds);
}

MetricMeans MetricsIn(const nlohmann::json& line, const char* key) {
  MetricMeans metrics;
  const auto object = line.find(key);
  if (object == line.end() || !object->is_object()) return metrics;
  for (const auto& [name, mean] : object->items()) {
    metrics[name] = mean.is_number() ? mean.get<double>() : std::nan("");
  }
  return metrics;
}

struct Line {
  std::optional<StepSummary> step;
  std::optional<EvaluationSummary> evaluation;
};

// Parses a finished line. Returns nullopt if MetricsLog did not write it.
std::optional<Line> Parse(absl::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return std::nullopt;
  if (!json.contains("evaluation_loss") && !json.contains("evaluation_metrics")) {
    return Line{.step = StepSummary{.step = step->get<int64_t>(),
                                    .loss = NumberIn(json, "loss"),
                                    .gradient_norm = NumberOr(json, "gradient_norm"),
                                    .learning_rate = NumberOr(json, "learning_rate"),
                                    .samples_per_second = NumberOr(json, "samples_per_second"),
                                    .skipped = json.contains("skipped"),
                                    .metrics = MetricsIn(json, "metrics")}};
  }
  Line line{.evaluation = EvaluationSummary{.step = step->get<int64_t>(),
                                            .loss = NumberIn(json, "evaluation_loss"),
                                            .time = TimeIn(json),
                                            .samples = IntegerOr(json, "evaluation_samples", 0),
                                            .metrics = MetricsIn(json, "evaluation_metrics")}};
  if (json.contains("evaluation_accuracy")) {
    line.evaluation->accuracy = NumberOr(json, "evaluation_accuracy");
  }
  return line;
}

// Returns true for some lines of steps as well, because a program names its metrics as it likes.
bool IsEvaluation(absl::string_view text) { return absl::StrContains(text, "\"evaluation_"); }

// Returns the first and the last element of a log.
template <typename T>
std::vector<T> Edges(const std::optional<T>& first, const std::optional<T>& last) {
  if (!first || !last) return {};
  return first->step == last->step ? std::vector<T>{*last} : std::vector<T>{*first, *last};
}

absl::Status FileError(const std::string& path, absl::string_view action) {
  return WithReason(absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", action)),
                    "METRICS_LOG_FAILED");
}

absl::Status WriteAll(int file, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path, absl::StrCat("write ", bytes.size(), " bytes"));
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

absl::Status ReadAt(int file, const std::string& path, int64_t offset, std::string& block) {
  for (int64_t have = 0; have < std::ssize(block);) {
    const ssize_t got = pread(file, &block[have], block.size() - have, offset + have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return FileError(path, "read");
    have += got;
  }
  return absl::OkStatus();
}

// Returns the offset of the first zero byte in the part that may be unsynced, or `size` if there is
// none. A power cut may leave zeros for pages that had not reached the device, with newer pages
// behind them. No worker was told that those lines are durable.
absl::StatusOr<int64_t> FindHole(int file, const std::string& path, int64_t size) {
  for (int64_t begin = std::max<int64_t>(0, size - kUnsyncedBytesMax); begin < size;) {
    std::string block(std::min(kBlockBytes, size - begin), ' ');
    RETURN_IF_ERROR(ReadAt(file, path, begin, block));
    if (const size_t zero = block.find('\0'); zero != std::string::npos) {
      return begin + static_cast<int64_t>(zero);
    }
    begin += std::ssize(block);
  }
  return size;
}

// Calls `visit` with the finished lines before `end`, the last one first, and the offset where each
// ends. Stops when it returns false.
absl::Status VisitBackward(int file, const std::string& path, int64_t end,
                           absl::FunctionRef<bool(int64_t, absl::string_view)> visit) {
  std::string text;  // from `begin` to the part that was visited already
  int64_t begin = end;
  bool finished = false;  // a newline was seen, so the text before it is a line
  while (begin > 0) {
    const int64_t size = std::min(kBlockBytes, begin);
    std::string block(size, '\0');
    begin -= size;
    RETURN_IF_ERROR(ReadAt(file, path, begin, block));
    text.insert(0, block);
    for (size_t newline; (newline = text.rfind('\n')) != std::string::npos; finished = true) {
      const int64_t line_begin = static_cast<int64_t>(newline) + 1;
      if (finished &&
          !visit(begin + std::ssize(text) + 1, absl::string_view(text).substr(line_begin))) {
        return absl::OkStatus();
      }
      text.resize(newline);
    }
  }
  if (finished) visit(std::ssize(text) + 1, text);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path,
                                                             Evaluations evaluations) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return FileError(path, "open");
  std::unique_ptr<MetricsLog> log(new MetricsLog(path, file));
  RETURN_IF_ERROR(log->ReadHistory(evaluations));
  // A killed process may have left lines without a sync. They count as history, so they must be
  // durable, and so must the name of a new file.
  if (fdatasync(file) != 0) return FileError(path, "sync");
  if (absl::Status synced = SyncFolder(ParentOf(path)); !synced.ok()) {
    return WithReason(synced, "METRICS_LOG_FAILED");
  }
  return log;
}

absl::Status MetricsLog::ReadHistory(Evaluations evaluations) {
  const int64_t file_size = lseek(file_, 0, SEEK_END);
  if (file_size < 0) return FileError(path_, "size");
  ASSIGN_OR_RETURN(const int64_t sound_size, FindHole(file_, path_, file_size));
  std::optional<StepSummary> last_step, first_step;
  std::optional<EvaluationSummary> last_evaluation, first_evaluation;
  RETURN_IF_ERROR(VisitBackward(file_, path_, sound_size, [&](int64_t end, absl::string_view text) {
    // There are many steps between two evaluations, so most lines are only scanned and not parsed.
    const bool is_near = sound_size - end < kEndBytes;
    const bool lacks_loss = last_step && !last_step->loss && is_near;
    if (last_step && !lacks_loss && !IsEvaluation(text)) {
      return evaluations == Evaluations::kAnywhere || is_near;
    }
    const std::optional<Line> line = Parse(text);
    if (!line) return true;
    size_ = std::max(size_, end);
    if (lacks_loss && line->step) last_step->loss = line->step->loss;
    if (!last_step) last_step = line->step;
    if (!last_evaluation) last_evaluation = line->evaluation;
    return !(last_step && last_evaluation) || (!last_step->loss && is_near);
  }));
  std::ifstream forward(path_);
  int64_t bytes = 0;
  auto lacks_loss = [&] { return first_step && !first_step->loss && bytes < kEndBytes; };
  auto wanted = [&] {
    return (last_step && !first_step) || (last_evaluation && !first_evaluation) || lacks_loss();
  };
  for (std::string text; wanted() && std::getline(forward, text);) {
    bytes += std::ssize(text);
    if (first_step && !lacks_loss() && !IsEvaluation(text)) continue;
    const std::optional<Line> line = Parse(text);
    if (!line) continue;
    if (first_step && line->step && !first_step->loss) first_step->loss = line->step->loss;
    if (!first_step) first_step = line->step;
    if (!first_evaluation) first_evaluation = line->evaluation;
  }
  history_ = {.edges = Edges(first_step, last_step),
              .evaluation_edges = Edges(first_evaluation, last_evaluation)};
  return ftruncate(file_, size_) == 0 ? absl::OkStatus() : FileError(path_, "resize");
}

MetricsLog::~MetricsLog() { close(file_); }

absl::Status MetricsLog::Append(absl::Span<const StepSummary> steps,
                                absl::Span<const EvaluationSummary> evaluations) {
  std::string lines;
  for (const StepSummary& s : steps) {
    absl::StrAppend(&lines, "{\"step\":", s.step);
    if (s.loss) absl::StrAppend(&lines, ",\"loss\":", Number(*s.loss));
    absl::StrAppend(&lines, ",\"gradient_norm\":", Number(s.gradient_norm),
                    ",\"learning_rate\":", Number(s.learning_rate),
                    ",\"samples_per_second\":", Number(s.samples_per_second));
    if (s.loss_scale > 0) absl::StrAppend(&lines, ",\"loss_scale\":", Number(s.loss_scale));
    if (s.skipped) absl::StrAppend(&lines, ",\"skipped\":true");
    absl::StrAppend(&lines, Time(s.time),
                    s.metrics.empty() ? "" : MetricsText("metrics", s.metrics), "}\n");
  }
  for (const EvaluationSummary& e : evaluations) {
    absl::StrAppend(&lines, "{\"step\":", e.step);
    if (e.loss) absl::StrAppend(&lines, ",\"evaluation_loss\":", Number(*e.loss));
    if (e.accuracy) absl::StrAppend(&lines, ",\"evaluation_accuracy\":", Number(*e.accuracy));
    absl::StrAppend(&lines, Time(e.time));
    // The metrics distinguish a line without a loss from a step's line.
    if (!e.loss || !e.metrics.empty()) {
      absl::StrAppend(&lines, ",\"evaluation_samples\":", e.samples,
                      MetricsText("evaluation_metrics", e.metrics));
    }
    absl::StrAppend(&lines, "}\n");
  }
  if (leftovers_ && ftruncate(file_, size_) != 0) return FileError(path_, "resize");
  leftovers_ = false;
  absl::Status written;
  // The state of the disk is unknown after a failed sync, and the next sync may return OK (Linux
  // reports an error once). So the lines are truncated, and the next attempt writes them again.
  for (absl::string_view left = lines; written.ok() && !left.empty();) {
    const absl::string_view piece = left.substr(0, kUnsyncedBytesMax);
    written = WriteAll(file_, piece, path_);
    if (written.ok() && fdatasync(file_) != 0) written = FileError(path_, "sync");
    left.remove_prefix(piece.size());
  }
  if (written.ok()) {
    size_ += std::ssize(lines);
  } else if (ftruncate(file_, size_) != 0) {
    PLOG(ERROR) << path_ << " has lines that may not be on the disk: cannot truncate it";
    leftovers_ = true;
  }
  return written;
}

}  // namespace muster
