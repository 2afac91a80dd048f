// What all commands of one invocation share: where the coordinator is, how to print, how to end.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/framework/command.h"
#include "cli/framework/coordinator_client.h"
#include "cli/framework/interrupt.h"
#include "cli/text/output.h"
#include "google/protobuf/message.h"
#include "lib/fleet/channel.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {

struct Session {
  // From the command line or the environment. A --context there goes before what the environment
  // has of the first three, which are "" then, and a server before MUSTER_CONTEXT.
  std::string server;                 // --server or MUSTER_SERVER
  std::string tls;                    // --tls or MUSTER_TLS
  std::string token_file;             // --token-file or MUSTER_TOKEN_FILE
  std::string context;                // --context or MUSTER_CONTEXT; "": the one in use
  std::string output_name = "table";  // -o
  Interrupt* interrupt = nullptr;     // null in tests
  int exit_code = 0;

  OutputFormat output() const;
  bool is_for_people() const;  // a table, which may leave out what programs want
  // The errors of Find() and FindLeader().
  absl::StatusOr<CoordinatorClient> Connect() const;

  struct Destination {
    CoordinatorTarget target;
    std::string where;      // for people: "host:7070 (context prod)"
    bool is_chosen = true;  // false: 127.0.0.1:7070, because nothing else is known
    bool is_local = false;  // the cluster of muster local up in its default folder
  };
  // Where Connect() goes: the server, else that of the context, else the local cluster, else
  // 127.0.0.1:7070. INVALID_ARGUMENT: both a server and a context are given. UNAVAILABLE: the
  // coordinator of the local cluster has ended. Else the errors of SecureTarget(), ReadContexts()
  // and FindContext().
  absl::StatusOr<Destination> Find() const;

  // Makes the relative paths of a job absolute, as seen from this process's folder, if the
  // coordinator belongs to a local cluster of this machine: its members may have been started in
  // another folder. Returns whether it does.
  static bool UsePathsOfHere(const Destination& destination, v1::JobSpec& spec);

  // Tells people that the coordinator has nothing to list: "no jobs at host:7070 (context prod)".
  void TellEmpty(const std::string& what, const CoordinatorClient& client) const;

  // Data, on stdout: `message` as JSON or YAML, or one of the texts. `wide`: a table with more
  // columns; "": there is none.
  void Print(const google::protobuf::Message& message, const std::string& table,
             const std::string& name, const std::string& wide = "") const;
  // An error, on stderr; sets the exit code. Does nothing for OK.
  void Fail(const absl::Status& status);
  // The exit code of a command that a signal ended; 0 when none came.
  int SignalExitCode() const;
};

// The commands, one file per group.
void AddRunCommand(Command program, Session& session);
void AddLocalCommands(Command program, Session& session);
void AddJobCommands(Command program, Session& session);
void AddCheckpointCommands(Command program, Session& session);
void AddFleetCommands(Command program, Session& session);
void AddLookCommands(Command program, Session& session);
void AddAdminCommands(Command program, Session& session);
void AddAccessCommands(Command program, Session& session);
void AddModelCommands(Command program, Session& session);
void AddBenchCommands(Command program, Session& session);
void AddChaosCommand(Command program, Session& session);
void AddRenderCommand(Command program, Session& session);
void AddSetupCommands(Command program, Session& session);

// -o spec: of muster get alone.
inline constexpr char kSpecOutput[] = "spec";
// The fault of an argument of -o, as every command has it; "": none.
std::string OutputFault(const std::string& name);

// Adds every command and the options they share. `session` outlives its CommandLine.
void BuildCommandLine(Command program, Session& session);

// Under which heading the program's own help lists a command.
inline constexpr char kJobGroup[] = "Jobs";
inline constexpr char kLookGroup[] = "Look";
inline constexpr char kClusterGroup[] = "Cluster";
inline constexpr char kHelpGroup[] = "Help";

// Parses and runs; returns the exit code.
int RunCommandLine(int argc, char** argv, Session& session);

// What to say about a command word that `program` does not know: "unknown command 'sumbit'; did you
// mean 'submit'?". "" when every word is known.
std::string UnknownCommand(Command program, const std::vector<std::string>& words);

}  // namespace muster::cli
