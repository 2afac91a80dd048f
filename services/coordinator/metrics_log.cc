#include "services/coordinator/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/status/status.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null";
}

double NumberOr(const nlohmann::json& line, const char* key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : std::nan("");
}

template <typename T>
void KeepEdges(std::vector<T>& edges, T value) {
  if (edges.size() == 2) edges.pop_back();
  edges.push_back(std::move(value));
}

void Remember(const nlohmann::json& line, MetricsHistory& history) {
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return;
  if (line.contains("evaluation_loss")) {
    EvaluationSummary evaluation{step->get<int64_t>(), NumberOr(line, "evaluation_loss"), {}};
    if (line.contains("evaluation_accuracy")) {
      evaluation.accuracy = NumberOr(line, "evaluation_accuracy");
    }
    KeepEdges(history.evaluation_edges, std::move(evaluation));
  } else {
    KeepEdges(
        history.edges,
        StepSummary{step->get<int64_t>(), NumberOr(line, "loss"), NumberOr(line, "gradient_norm"),
                    NumberOr(line, "learning_rate"), NumberOr(line, "samples_per_second")});
  }
}

absl::Status FileError(const std::string& path) {
  return WithReason(absl::ErrnoToStatus(errno, path), "METRICS_LOG_FAILED");
}

absl::Status WriteAll(int file, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path);
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& path) {
  MetricsHistory history;
  int64_t whole = 0;  // bytes of finished lines
  std::ifstream existing(path);
  for (std::string line; std::getline(existing, line) && !existing.eof();) {
    whole += line.size() + 1;
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) Remember(json, history);
  }
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return FileError(path);
  std::unique_ptr<MetricsLog> log(new MetricsLog(path, file, std::move(history)));
  if (ftruncate(file, whole) != 0) return FileError(path);
  return log;
}

MetricsLog::~MetricsLog() { close(file_); }

absl::Status MetricsLog::Append(absl::Span<const StepSummary> steps,
                                absl::Span<const EvaluationSummary> evaluations) {
  std::string lines;
  for (const StepSummary& s : steps) {
    absl::StrAppend(&lines, "{\"step\":", s.step, ",\"loss\":", Number(s.loss),
                    ",\"gradient_norm\":", Number(s.gradient_norm),
                    ",\"learning_rate\":", Number(s.learning_rate),
                    ",\"samples_per_second\":", Number(s.samples_per_second));
    if (s.loss_scale > 0) absl::StrAppend(&lines, ",\"loss_scale\":", Number(s.loss_scale));
    if (s.skipped) absl::StrAppend(&lines, ",\"skipped\":true");
    absl::StrAppend(&lines, "}\n");
  }
  for (const EvaluationSummary& e : evaluations) {
    absl::StrAppend(&lines, "{\"step\":", e.step, ",\"evaluation_loss\":", Number(e.loss));
    if (e.accuracy) absl::StrAppend(&lines, ",\"evaluation_accuracy\":", Number(*e.accuracy));
    absl::StrAppend(&lines, "}\n");
  }
  return WriteAll(file_, lines, path_);
}

}  // namespace muster
