#include "services/worker/program/program_process.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "lib/log/log_scope.h"
#include "lib/status/status.h"
#include "lib/status/utf8.h"

namespace muster {
namespace {

// The other processes of a program get this time after a signal has killed one of them.
constexpr absl::Duration kOthersGrace = absl::Seconds(5);
// Of the standard error in a message. The job keeps the message in the store.
constexpr size_t kErrorBytesMax = 4096;

absl::Status Failed(absl::Status status) { return WithReason(std::move(status), "PROGRAM_FAILED"); }

// Returns the last lines of `text` that fit into kErrorBytesMax.
absl::string_view LastLines(absl::string_view text) {
  if (text.size() <= kErrorBytesMax) return text;
  text.remove_prefix(text.size() - kErrorBytesMax);
  text.remove_prefix(text.find('\n') + 1);  // 0 if this is one line
  return text;
}

}  // namespace

absl::Status CheckProgramAllowed(const v1::JobSpec& spec, bool allow_programs) {
  if (!spec.has_program() || allow_programs) return absl::OkStatus();
  return WithReason(
      absl::PermissionDeniedError(
          "program: this worker runs without --allow_programs, so it starts no commands of jobs; "
          "start it with that flag, or leave `program` out and attach a program by hand"),
      "PROGRAMS_NOT_ALLOWED");
}

absl::StatusOr<std::unique_ptr<ProgramProcess>> ProgramProcess::Start(const v1::ProgramSpec& spec,
                                                                      Options options) {
  std::unique_ptr<ProgramProcess> program(new ProgramProcess(spec, std::move(options)));
  RETURN_IF_ERROR(program->StartGroup());
  program->supervisor_ = std::jthread([program = program.get()] { program->Supervise(); });
  return program;
}

ProgramProcess::~ProgramProcess() { EndSupervision(); }

absl::Status ProgramProcess::StartGroup() {
  ProgramGroup::Options group = {.command = {spec_.command().begin(), spec_.command().end()},
                                 .directory = spec_.directory(),
                                 .processes = std::max(1, spec_.processes())};
  for (const auto& [name, value] : spec_.environment()) {
    group.environment.push_back(absl::StrCat(name, "=", value));
  }
  // They come after the variables of the job, which must not replace them.
  group.environment.push_back(absl::StrCat("MUSTER_PROGRAM_SOCKET=", options_.socket));
  group.environment.push_back(absl::StrCat("MUSTER_JOB=", options_.job));
  group.environment.push_back("MUSTER_SUBMIT=0");
  const bool several = group.processes > 1;
  group.on_line = [job = options_.job, several](int process, OutputStream, absl::string_view line) {
    if (absl::EndsWith(line, "\r")) return;  // a progress bar
    while (absl::ConsumeSuffix(&line, "\n") || absl::ConsumeSuffix(&line, "\r")) {
    }
    const LogScope scope({.job = job});
    LOG(INFO) << (several ? absl::StrCat("program ", process, ": ") : "program: ")
              << Printable(line);
  };
  group.on_outcome = [this] {
    absl::MutexLock lock(&mu_);
    has_ended_ = true;
  };
  absl::StatusOr<std::unique_ptr<ProgramGroup>> started = ProgramGroup::Start(std::move(group));
  if (!started.ok()) return Failed(Annotate(started.status(), "program"));
  group_ = *std::move(started);
  LOG(INFO) << options_.job << ": started its program, " << spec_.command(0);
  return absl::OkStatus();
}

void ProgramProcess::Supervise() {
  const LogScope scope({.job = options_.job});
  for (;;) {
    {
      absl::MutexLock lock(&mu_);
      auto has_news = [this]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return has_ended_ || stopping_; };
      mu_.Await(absl::Condition(&has_news));
      if (stopping_) return;
      has_ended_ = false;
    }
    // There is no outcome if the call was for the group before this one.
    const std::optional<ProgramGroup::Outcome> outcome = group_->outcome();
    if (!outcome.has_value()) continue;
    if (absl::Status failed = StartAgain(*outcome); !failed.ok()) {
      options_.failed(std::move(failed));
      return;
    }
  }
}

absl::Status ProgramProcess::StartAgain(const ProgramGroup::Outcome& outcome) {
  const std::string name = spec_.processes() > 1
                               ? absl::StrCat("process ", outcome.process, " of the program")
                               : "the program";
  std::string message = absl::StrCat(name, " ", outcome.end.ToString());
  const bool is_signal = outcome.end.signal != 0;
  int restart = 0;
  if (is_signal) {
    absl::MutexLock lock(&mu_);
    restart = ++restarts_;
  }
  if (is_signal && restart <= kRestartsMax) {
    LOG(WARNING) << options_.job << ": " << message << "; restart " << restart << " of "
                 << kRestartsMax << " without a finished step";
    // The other processes wait for the one that is gone, so all of them begin again.
    group_->Stop(kOthersGrace);
    return StartGroup();
  }
  if (is_signal) {
    absl::StrAppend(&message, ", after ", kRestartsMax, " restarts without a finished step");
  } else if (outcome.end.code == 0) {
    absl::StrAppend(&message, " before the last step of its job");
  }
  const absl::string_view errors = LastLines(outcome.errors);
  if (!errors.empty()) absl::StrAppend(&message, "; the end of its standard error:\n", errors);
  return Failed(absl::UnknownError(message));
}

void ProgramProcess::StepFinished() {
  absl::MutexLock lock(&mu_);
  restarts_ = 0;
}

void ProgramProcess::MayEnd() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
}

void ProgramProcess::EndSupervision() {
  MayEnd();
  if (supervisor_.joinable()) supervisor_.join();
}

void ProgramProcess::Stop(absl::Duration grace) {
  EndSupervision();
  if (!group_->AwaitEnd(grace)) group_->Stop(grace);
}

}  // namespace muster
