#include "cli/text/progress_display.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/text/job_text.h"

namespace muster::cli {
namespace {
constexpr absl::Duration kPlainInterval = absl::Seconds(5);
}

void ProgressDisplay::Update(const v1::Job& job, absl::Time now) {
  SayEvaluations(job.progress());
  if (terminal_.interactive) {
    Clear();
    // One column stays free, because a full line would wrap.
    std::fputs(above_.c_str(), stderr);
    std::fputs(ProgressLine(job, terminal_.width - 1, terminal_.color).c_str(), stderr);
    std::fflush(stderr);
    lines_drawn_ = 1 + static_cast<int>(std::ranges::count(above_, '\n'));
  } else if (job.state() != last_state_ || now - last_line_ >= kPlainInterval) {
    Say(ProgressLine(job, 120));
    last_line_ = now;
  }
  last_state_ = job.state();
}

// The progress may have the last evaluation before it is recorded; a later update prints it. A job
// ends only after all its evaluations are recorded.
void ProgressDisplay::SayEvaluations(const v1::JobProgress& progress) {
  if (!progress.has_evaluation_loss() || progress.evaluation_step() < evaluations_before_) return;
  for (const Evaluation& evaluation : evaluations_(evaluations_before_)) {
    if (evaluation.step < evaluations_before_) continue;
    evaluations_before_ = evaluation.step + 1;
    Say(absl::StrFormat("step %d: evaluation loss %.4g%s", evaluation.step, evaluation.loss,
                        evaluation.accuracy
                            ? absl::StrFormat(", accuracy %.2f %%", 100 * *evaluation.accuracy)
                            : ""));
  }
}

void ProgressDisplay::Say(const std::string& line) {
  Clear();
  std::fputs(absl::StrCat(line, "\n").c_str(), stderr);
}

void ProgressDisplay::Clear() {
  for (int line = 0; line < lines_drawn_; ++line) {
    std::fputs(line == 0 ? "\r\033[K" : "\033[A\033[K", stderr);
  }
  lines_drawn_ = 0;
}

}  // namespace muster::cli
