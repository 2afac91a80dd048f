// The state that all commands of one invocation share: where the coordinator is, how to print, and
// the exit code.
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
  // Values from the command line or the environment. If the command line has --context, the
  // environment's values of the first three are ignored. MUSTER_CONTEXT is ignored if there is a
  // server.
  std::string server;                 // --server or MUSTER_SERVER
  std::string tls;                    // --tls or MUSTER_TLS
  std::string token_file;             // --token-file or MUSTER_TOKEN_FILE
  std::string context;                // --context or MUSTER_CONTEXT; "": the current one
  std::string output_name = "table";  // -o
  Interrupt* interrupt = nullptr;     // null in tests
  int exit_code = 0;

  OutputFormat output() const;
  bool is_for_people() const;  // prints tables, which may omit details
  // Connects to the coordinator. Returns the errors of Find() and FindLeader().
  absl::StatusOr<CoordinatorClient> Connect() const;

  struct Destination {
    CoordinatorTarget target;
    std::string where;      // for people: "host:7070 (context prod)"
    bool is_chosen = true;  // false: the default address, 127.0.0.1:7070
    bool is_local = false;  // the local cluster in the default folder
  };
  // Returns the destination of Connect(): the server, else that of the context, else the local
  // cluster, else 127.0.0.1:7070. Errors are those of SecureTarget(), ReadContexts() and
  // FindContext(), and:
  // - INVALID_ARGUMENT: both a server and a context are given.
  // - UNAVAILABLE: the coordinator of the local cluster has ended.
  absl::StatusOr<Destination> Find() const;

  // Makes the relative paths of a job absolute, based on this process's folder, if the coordinator
  // belongs to a local cluster on this machine. Its members may run in another folder. Returns
  // whether it belongs to one.
  static bool UsePathsOfHere(const Destination& destination, v1::JobSpec& spec);

  // Prints to stderr that the list is empty, unless a program reads the output: "no jobs at
  // host:7070 (context prod)".
  void TellEmpty(const std::string& what, const CoordinatorClient& client) const;

  // Prints data to stdout: `message` as JSON or YAML, or one of the texts. `wide` is a table with
  // more columns; "" means `table`.
  void Print(const google::protobuf::Message& message, const std::string& table,
             const std::string& name, const std::string& wide = "") const;
  // Prints an error to stderr and sets the exit code. No-op for OK.
  void Fail(const absl::Status& status);
  // Returns the exit code of a command that a signal ended, or 0 if none came.
  int SignalExitCode() const;
};

// These add the commands. Each group has its own file.
void AddRunCommand(Command program, Session& session);
void AddLaunchCommand(Command program, Session& session);
void AddLocalCommands(Command program, Session& session);
void AddJobCommands(Command program, Session& session);
void AddCheckpointCommands(Command program, Session& session);
void AddFleetCommands(Command program, Session& session);
void AddLookCommands(Command program, Session& session);
void AddAdminCommands(Command program, Session& session);
void AddAccessCommands(Command program, Session& session);
void AddModelCommands(Command program, Session& session);
void AddDataCommands(Command program, Session& session);
void AddBenchCommands(Command program, Session& session);
void AddChaosCommand(Command program, Session& session);
void AddRenderCommand(Command program, Session& session);
void AddConvertCommand(Command program,
                       Session& session);  // below `data`, which it adds if missing
void AddSetupCommands(Command program, Session& session);

// The argument of -o that only muster get accepts.
inline constexpr char kSpecOutput[] = "spec";
// Returns the fault of an argument of -o of commands other than get, or "".
std::string OutputFault(const std::string& name);

// Adds every command and the shared options. `session` must outlive the CommandLine.
void BuildCommandLine(Command program, Session& session);

// The headings under which the program's help lists the commands.
inline constexpr char kJobGroup[] = "Jobs";
inline constexpr char kLookGroup[] = "Look";
inline constexpr char kClusterGroup[] = "Cluster";
inline constexpr char kHelpGroup[] = "Help";

// Parses the command line and runs the command. Returns the exit code.
int RunCommandLine(int argc, char** argv, Session& session);

// Returns a message about a command word that `program` does not know, "unknown command 'sumbit';
// did you mean 'submit'?", or "" if every word is known.
std::string UnknownCommand(Command program, const std::vector<std::string>& words);

}  // namespace muster::cli
