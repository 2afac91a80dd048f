// What the programs of a cluster have in common: exit codes, command line, signals, and how a
// member introduces itself.
#pragma once

#include <csignal>
#include <string>

#include "absl/time/time.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// sysexits: 64..78 are permanent, a restart does not help (69: it may).
enum ExitCode : int {
  kExitOk = 0,
  kExitData = 65,
  kExitUnavailable = 69,
  kExitInternal = 70,
  kExitRefused = 77,  // the coordinator refuses this process for good
  kExitConfig = 78,
};

// Reads flags and turns logging to stderr on. kExitOk, or kExitConfig when something is left that
// is no flag. abseil itself ends the process for a flag it does not know, and after --help and
// --version (lib/version/build.h).
ExitCode ParseCommandLine(int argc, char** argv, const char* usage);

// SIGTERM and SIGINT, taken by waiting for them. Make it before the first thread: all inherit the
// mask.
class StopSignal {
 public:
  StopSignal();
  // Waits up to `timeout`; 0 when none came.
  int Await(absl::Duration timeout) const;
  // Waits for one.
  int Await() const;
  // Ends a wait of this process as SIGTERM does: for what happens on another thread.
  static void Raise();

 private:
  sigset_t signals_;
};

// "<role>-<host>-<pid>", a valid name whatever the host is called.
std::string DefaultMemberName(v1::Role role);

// Name, role, this process and a new incarnation; the caller adds what its role has.
v1::Hello Introduce(v1::Role role, const std::string& member);

}  // namespace muster
