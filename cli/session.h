// What all commands of one invocation share: where the coordinator is, how to print, how to end.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/coordinator_client.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "google/protobuf/message.h"
#include "lib/fleet/channel.h"

namespace muster::cli {

struct Session {
  std::string
      server;       // --server or MUSTER_SERVER; "": a running local cluster, else 127.0.0.1:7070
  std::string tls;  // --tls or MUSTER_TLS
  std::string token_file;             // --token-file or MUSTER_TOKEN_FILE
  std::string context;                // --context or MUSTER_CONTEXT; "": the one in use
  std::string output_name = "table";  // -o
  Interrupt* interrupt = nullptr;     // null in tests
  int exit_code = 0;

  OutputFormat output() const;
  // What was said on the command line or in the environment, else by a context, else a local
  // cluster. The errors of SecureTarget(), FindLeader(), ReadContexts() and FindContext().
  absl::StatusOr<CoordinatorClient> Connect() const;
  // Where Connect() goes. The errors of SecureTarget().
  absl::StatusOr<CoordinatorTarget> Target() const;

  // Data, on stdout: `message` as JSON or YAML, or one of the texts. `wide`: a table with more
  // columns; "": there is none.
  void Print(const google::protobuf::Message& message, const std::string& table,
             const std::string& name, const std::string& wide = "") const;
  // An error, on stderr; sets the exit code. Does nothing for OK.
  void Fail(const absl::Status& status);
  // The exit code of a command that a signal ended; 0 when none came.
  int SignalExitCode() const;
};

// A subcommand whose help ends with an example.
CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& description,
                     const std::string& example);

// The commands, one file per group.
void AddRunCommand(CLI::App& app, Session& session);
void AddLocalCommands(CLI::App& app, Session& session);
void AddJobCommands(CLI::App& app, Session& session);
void AddCheckpointCommands(CLI::App& app, Session& session);
void AddFleetCommands(CLI::App& app, Session& session);
void AddLookCommands(CLI::App& app, Session& session);
void AddAdminCommands(CLI::App& app, Session& session);
void AddAccessCommands(CLI::App& app, Session& session);
void AddModelCommands(CLI::App& app, Session& session);
void AddBenchCommands(CLI::App& app, Session& session);
void AddChaosCommand(CLI::App& app, Session& session);
void AddRenderCommand(CLI::App& app, Session& session);
void AddSetupCommands(CLI::App& app, Session& session);

// Adds every command and the options they share. `session` outlives `app`.
void BuildCommandLine(CLI::App& app, Session& session);

// Under which heading the program's own help lists a command.
inline constexpr char kJobGroup[] = "Jobs";
inline constexpr char kLookGroup[] = "Look";
inline constexpr char kClusterGroup[] = "Cluster";
inline constexpr char kHelpGroup[] = "Help";

// Parses and runs; returns the exit code.
int RunCommandLine(int argc, char** argv, Session& session);

// What to say about a command word that `app` does not know: "unknown command 'sumbit'; did you
// mean 'submit'?". "" when every word is known.
std::string UnknownCommand(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace muster::cli
