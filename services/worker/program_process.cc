#include "services/worker/program_process.h"

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
  return program;
}

ProgramProcess::~ProgramProcess() = default;

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
  group.on_outcome = options_.ended;
  absl::StatusOr<std::unique_ptr<ProgramGroup>> started = ProgramGroup::Start(std::move(group));
  if (!started.ok()) return Failed(Annotate(started.status(), "program"));
  group_ = *std::move(started);
  LOG(INFO) << options_.job << ": started its program, " << spec_.command(0);
  return absl::OkStatus();
}

absl::Status ProgramProcess::Check() {
  const std::optional<ProgramGroup::Outcome> outcome = group_->outcome();
  if (!outcome.has_value()) return absl::OkStatus();
  const std::string name = spec_.processes() > 1
                               ? absl::StrCat("process ", outcome->process, " of the program")
                               : "the program";
  if (outcome->end.signal != 0 && restarts_ < kRestartsMax) {
    ++restarts_;
    LOG(WARNING) << options_.job << ": " << name << " " << outcome->end.ToString() << "; restart "
                 << restarts_ << " of " << kRestartsMax << " without a finished step";
    // The other processes wait for the one that is gone, so all of them begin again.
    group_->Stop(kOthersGrace);
    return StartGroup();
  }
  std::string message = absl::StrCat(name, " ", outcome->end.ToString());
  if (outcome->end.signal != 0) {
    absl::StrAppend(&message, ", after ", kRestartsMax, " restarts without a finished step");
  } else if (outcome->end.code == 0) {
    absl::StrAppend(&message, " before the last step of its job");
  }
  const absl::string_view errors = LastLines(outcome->errors);
  if (!errors.empty()) absl::StrAppend(&message, "; the end of its standard error:\n", errors);
  return Failed(absl::InvalidArgumentError(message));
}

void ProgramProcess::Stop(absl::Duration grace) {
  if (!group_->AwaitEnd(grace)) group_->Stop(grace);
}

}  // namespace muster
