#include "lib/fleet/daemon.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lib/fleet/flag_suggestions.h"
#include "lib/log/json_log.h"
#include "lib/security/core_dumps.h"
#include "lib/version/build.h"

ABSL_FLAG(
    bool, core_dumps, false,
    "write a core dump after a crash, if the system allows it (ulimit -c): it contains tokens, "
    "keys, parameters and samples");

ABSL_FLAG(muster::LogFormat, log_format, muster::LogFormat::kText,
          "how the log is written to stderr: text, a line with a prefix; or json, an object a line "
          "with the fields that docs/operations/run.md lists");

namespace muster {
namespace {

std::string Host() {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return host;
}

// Changes --trace-file=a-b to --trace_file=a-b: dashes and underscores are both accepted.
void NameWithUnderscores(char* argument) {
  if (argument[0] != '-' || argument[1] != '-') return;
  for (char* c = argument + 2; *c != 0 && *c != '='; ++c) {
    if (*c == '-') *c = '_';
  }
}

bool reading_flags = false;

// Ends the process with kExitUsage if abseil ends it for a faulty flag. abseil exits with 1, after
// it has named the flag on stderr; a supervisor needs kExitUsage. `arguments` is the command line,
// a std::vector<std::string>.
void EndWithUsage(int status, void* arguments) {
  if (!reading_flags || status != 1) return;
  for (const std::string& line : SuggestFlags(*static_cast<std::vector<std::string>*>(arguments))) {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(nullptr);
  _exit(kExitUsage);
}

// The time of the first signal from outside, in nanoseconds of the steady clock; 0: none yet.
// Signals sent by StopSignal::Raise() do not count.
std::atomic<int64_t> told_to_stop = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free, "a signal's handler reads it");

// Reads the clock that absl and std::chrono read, but is safe in a signal handler.
int64_t SteadyNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool IsRaised(const siginfo_t& signal) { return signal.si_pid == getpid(); }

void EndIfToldAgain(int number, siginfo_t* signal, void* /*context*/) {
  if (IsRaised(*signal)) return;
  const int64_t now = SteadyNanoseconds();
  int64_t first = 0;
  if (told_to_stop.compare_exchange_strong(first, now)) return;
  if (now - first < StopSignal::kOneStop / std::chrono::nanoseconds(1)) return;
  LogInSignalHandler("told to stop again: ending at once");
  _exit(128 + number);
}

// Makes a further signal end the process: sets the handler and unblocks the signals on the calling
// thread, so that they interrupt whatever it does.
void EndAtTheNext(const sigset_t& signals) {
  struct sigaction action = {};
  action.sa_sigaction = EndIfToldAgain;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

ExitCode ParseCommandLine(int argc, char** argv, const char* usage) {
  FLAGS_logtostderr = true;
  google::InitGoogleLogging(argv[0]);
  absl::SetProgramUsageMessage(usage);
  absl::FlagsUsageConfig config;
  config.version_string = [] { return ToText(ThisBuild()); };
  absl::SetFlagsUsageConfig(config);
  for (int i = 1; i < argc; ++i) NameWithUnderscores(argv[i]);
  // abseil exits with 1 after --help as well, which must stay 1.
  reading_flags = std::none_of(argv + 1, argv + argc, [](const char* argument) {
    return absl::StartsWith(argument, "--help");
  });
  static std::vector<std::string>& arguments = *new std::vector<std::string>;  // outlives exit()
  arguments.assign(argv + 1, argv + argc);
  on_exit(EndWithUsage, &arguments);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  reading_flags = false;
  SetLogFormat(absl::GetFlag(FLAGS_log_format), argv[0]);
  if (!absl::GetFlag(FLAGS_core_dumps)) ForbidCoreDumps();
  if (rest.size() > 1) {
    LOG(ERROR) << "unexpected argument '" << rest[1] << "': flags begin with --";
    return kExitUsage;
  }
  return kExitOk;
}

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
}

int StopSignal::Await(absl::Duration timeout) const {
  const timespec limit = absl::ToTimespec(timeout);
  siginfo_t signal;
  if (sigtimedwait(&signals_, &signal, &limit) < 0) return 0;
  told_to_stop = IsRaised(signal) ? 0 : SteadyNanoseconds();
  EndAtTheNext(signals_);
  return signal.si_signo;
}

int StopSignal::Await() const {
  for (;;) {
    if (const int signal = Await(absl::Hours(1)); signal != 0) return signal;
  }
}

void StopSignal::Raise() { kill(getpid(), SIGTERM); }

std::string DefaultMemberName(v1::Role role) {
  std::string host = Host().substr(0, 24);
  std::transform(host.begin(), host.end(), host.begin(), [](unsigned char c) {
    return absl::ascii_isalnum(c) ? absl::ascii_tolower(c) : '-';
  });
  return absl::StrCat(absl::AsciiStrToLower(v1::Role_Name(role)), "-", host, "-", getpid());
}

v1::Hello Introduce(v1::Role role, const std::string& member) {
  v1::Hello hello;
  hello.set_member(member);
  hello.set_role(role);
  hello.set_incarnation(absl::StrCat(absl::GetCurrentTimeNanos(), "-", getpid()));
  hello.set_host(Host());
  hello.set_pid(getpid());
  return hello;
}

}  // namespace muster
