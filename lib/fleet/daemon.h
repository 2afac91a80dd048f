// Code common to the programs of a cluster: exit codes, command line, signals, and a member's
// Hello.
#pragma once

#include <chrono>
#include <csignal>
#include <string>

#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// Exit codes.
// - 64 to 78 (sysexits): permanent; another process with the same flags would end in the same way.
// - 128 and above: worth another try.
// - 128 plus the number of a signal: killed by an unhandled signal, as a shell reports it, or ended
//   by a second SIGTERM or SIGINT.
// - 200 and above: Muster's own.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,  // an unknown flag, or a value that cannot be parsed
  kExitData = 65,
  kExitRefused = 77,  // the coordinator refuses this process for good
  kExitConfig = 78,
  kExitUnavailable = 200,  // a port or a lock is taken
  kExitInternal = 201,     // the disk failed, or an unforeseen error
  kExitDeviceLost = 202,   // only a new process can use the device again
};

// Reads the flags, logs to stderr (as --log_format says), and disables core dumps unless
// --core_dumps is given. Returns kExitOk, or kExitUsage if an argument is not a flag.
//
// abseil ends the process itself in these cases.
// - An unknown flag or a bad value: exit code kExitUsage. For a mistyped flag stderr suggests the
//   nearest one.
// - --help: exit code 1.
// - --version: exit code 0 (lib/version/build.h).
ExitCode ParseCommandLine(int argc, char** argv, const char* usage);

// Blocks SIGTERM and SIGINT, and waits for the first of them. Create it before the first thread:
// threads inherit the signal mask. After the first signal, a second one from outside ends the
// process at once with 128 plus its number, whatever its threads are doing.
class StopSignal {
 public:
  // Signals within this time of the first one count as the same request. GNU timeout signals its
  // command and then the whole group; Ctrl-C in a terminal reaches the group as well as a script's
  // trap.
  static constexpr std::chrono::milliseconds kOneStop{250};

  StopSignal();
  // Blocks for up to `timeout`. Returns the signal, or 0 if none came.
  int Await(absl::Duration timeout) const;
  // Blocks until a signal comes, and returns it.
  int Await() const;
  // Ends this process's wait as SIGTERM does. For events on other threads. It does not count as the
  // first signal: a signal from outside that follows is treated as the first.
  static void Raise();

 private:
  sigset_t signals_;
};

// Returns "<role>-<host>-<pid>", which is a valid name for any host name.
std::string DefaultMemberName(v1::Role role);

// Returns a Hello with name, role, host, pid and a new incarnation; the caller adds the fields of
// its role.
v1::Hello Introduce(v1::Role role, const std::string& member);

}  // namespace muster
