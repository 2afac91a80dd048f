// What the programs of a cluster have in common: exit codes, command line, signals, and how a
// member introduces itself.
#pragma once

#include <chrono>
#include <csignal>
#include <string>

#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// 64..78 (sysexits) are permanent: another process with the same flags would end in the same way.
// 128 and above may be tried again. A signal that is not taken ends a process with 128 + its number
// as a shell tells it, and so does a second SIGTERM or SIGINT; from 200 on are ours.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 64,  // a flag that is not known, or cannot be read
  kExitData = 65,
  kExitRefused = 77,  // the coordinator refuses this process for good
  kExitConfig = 78,
  kExitUnavailable = 200,  // a port or a lock is taken
  kExitInternal = 201,     // the disk failed, or something that we did not foresee
  kExitDeviceLost = 202,   // only another process can use the device again
};

// Reads flags, turns logging to stderr on (as --log_format says), and core dumps off unless
// --core_dumps. kExitOk, or
// kExitUsage when something is left that is no flag. abseil itself ends the process for a flag it
// does not know, or cannot read, which becomes kExitUsage, and after --help (1) and --version (0;
// lib/version/build.h). For a mistyped flag stderr has the nearest one, too.
ExitCode ParseCommandLine(int argc, char** argv, const char* usage);

// SIGTERM and SIGINT, taken by waiting for the first of them. Make it before the first thread: all
// inherit the mask. From then on nobody waits again: the second that comes from outside ends the
// process at once, with 128 and its number, wherever the thread that took the first one stands.
class StopSignal {
 public:
  // What comes within this time of the first is the first, told twice: GNU timeout signals its
  // command and then the whole group, and a terminal's Ctrl-C comes beside that of a script's trap.
  static constexpr std::chrono::milliseconds kOneStop{250};

  StopSignal();
  // Waits up to `timeout`; 0 when none came.
  int Await(absl::Duration timeout) const;
  // Waits for one.
  int Await() const;
  // Ends a wait of this process as SIGTERM does: for what happens on another thread. Nobody outside
  // has said so: after it the first signal from there is not the second.
  static void Raise();

 private:
  sigset_t signals_;
};

// "<role>-<host>-<pid>", a valid name whatever the host is called.
std::string DefaultMemberName(v1::Role role);

// Name, role, this process and a new incarnation; the caller adds what its role has.
v1::Hello Introduce(v1::Role role, const std::string& member);

}  // namespace muster
