// Implements muster admin: backups of the coordinator's store.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/commands/session.h"
#include "cli/framework/interrupt.h"
#include "cli/local/local_cluster.h"
#include "google/protobuf/struct.pb.h"
#include "grpcpp/client_context.h"
#include "lib/checkpoint/folder.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/daemon.h"
#include "lib/fleet/leader.h"
#include "lib/security/sha256.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "proto/muster/v1/admin.grpc.pb.h"

namespace muster::cli {
namespace {

absl::Status FileError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
}

absl::Status WriteAll(int file, const std::string& path, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path);
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

// Writes a backup as a whole or not at all. Only the owner may read it, because it contains
// secrets.
absl::Status Backup(const std::string& path, Session& session) {
  ASSIGN_OR_RETURN(const Session::Destination destination, session.Find());
  const CoordinatorTarget& target = destination.target;
  RETURN_IF_ERROR(FindLeader(target));
  const std::string unfinished = absl::StrCat(path, ".", getpid(), ".tmp");
  const int file = open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return FileError(unfinished);
  const absl::Cleanup remove = [&] {
    close(file);
    unlink(unfinished.c_str());
  };
  const auto stub = v1::AdminService::NewStub(DialCoordinator(target));
  grpc::ClientContext context;
  // A signal cancels the call. The unfinished file is then removed.
  std::optional<Interrupt::Registration> cancel;
  if (session.interrupt != nullptr) {
    cancel.emplace(*session.interrupt, [&context] { context.TryCancel(); });
  }
  const auto reader = stub->Backup(&context, {});
  Sha256 hash;
  std::string told;
  int64_t bytes = 0;
  for (v1::BackupResponse piece; reader->Read(&piece);) {
    hash.Add(piece.data());
    bytes += static_cast<int64_t>(piece.data().size());
    told = piece.sha256();
    if (const absl::Status written = WriteAll(file, unfinished, piece.data()); !written.ok()) {
      context.TryCancel();
      reader->Finish();
      return written;
    }
  }
  const absl::Status ended = FromGrpc(reader->Finish());
  if (session.exit_code = session.SignalExitCode(); session.exit_code != 0) return absl::OkStatus();
  if (!ended.ok()) return Annotate(ended, absl::StrCat("the coordinator at ", target.address()));
  const std::string sum = hash.Finish();
  if (told != sum) {
    return absl::DataLossError("the backup was damaged in transfer; make it again");
  }
  if (fsync(file) != 0 || rename(unfinished.c_str(), path.c_str()) != 0) return FileError(path);
  RETURN_IF_ERROR(SyncFolder(ParentOf(path)));
  google::protobuf::Struct facts;
  (*facts.mutable_fields())["file"].set_string_value(path);
  (*facts.mutable_fields())["bytes"].set_number_value(static_cast<double>(bytes));
  (*facts.mutable_fields())["sha256"].set_string_value(absl::BytesToHexString(sum));
  session.Print(facts,
                absl::StrCat(path, "  ", bytes, " bytes, SHA-256 ", absl::BytesToHexString(sum),
                             "\nKeep it secret. Also keep a copy of the --state_dir folder, which "
                             "has the checkpoints.\n"),
                absl::StrCat(path, "\n"));
  return absl::OkStatus();
}

constexpr int kNotStarted = 127;  // as in shells

struct RestoreOptions {
  std::string file;
  std::string state_dir;
  std::string store;
  bool force = false;
  std::vector<std::string> more;
};

// Returns the error of a failed restore. Its code says whether a retry can help.
absl::Status RestoreFault(const RestoreOptions& options, int wait_status) {
  const std::string after =
      options.force ? "; the store may have lost its data: restore again before you start a "
                      "coordinator on it"
                    : "";
  if (WIFSIGNALED(wait_status)) {
    return absl::AbortedError(
        absl::StrCat("the restore was ended by signal ", WTERMSIG(wait_status), after));
  }
  const int code = WEXITSTATUS(wait_status);
  if (code == kNotStarted) return absl::NotFoundError("the coordinator binary does not start");
  const std::string why = absl::StrCat("not restored; the lines above say why", after);
  if (code == muster::kExitUsage) return absl::InvalidArgumentError(why);
  if (code == muster::kExitData) return absl::DataLossError(why);
  if (code >= muster::kExitUnavailable) return absl::UnavailableError(why);
  return absl::FailedPreconditionError(why);
}

// Runs the coordinator binary, because it knows its stores. The child ends with this process,
// however this process ends.
absl::Status Restore(const RestoreOptions& options) {
  ASSIGN_OR_RETURN(const std::string program, FindBinary("coordinator"));
  std::vector<std::string> words = {program, "--restore=" + options.file,
                                    "--state_dir=" + options.state_dir};
  if (!options.store.empty()) words.push_back("--store=" + options.store);
  if (options.force) words.push_back("--force");
  words.insert(words.end(), options.more.begin(), options.more.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(kNotStarted);  // the parent died before prctl()
    execv(program.c_str(), arguments.data());
    _exit(kNotStarted);
  }
  if (child < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return RestoreFault(options, status);
}

}  // namespace

void AddAdminCommands(Command program, Session& session) {
  Command admin = program.AddCommand("admin", "Backups of the coordinator's store",
                                     "muster admin backup muster.backup");
  admin.RequireCommand();

  auto path = std::make_shared<std::string>();
  Command backup = admin.AddCommand("backup", "Copy a running coordinator's store into a file",
                                    "muster admin backup /backups/$(date +%F).muster");
  backup.AddOption("FILE", *path, "File; an existing one is replaced").Required();
  backup.SetAction([path, &session] { session.Fail(Backup(*path, session)); });

  auto options = std::make_shared<RestoreOptions>();
  Command restore = admin.AddCommand("restore", "Restore a backup; no coordinator may run",
                                     "muster admin restore FILE --state-dir /var/lib/muster");
  restore.AddOption("FILE", options->file, "A file from muster admin backup").Required();
  restore.AddOption("--state-dir", options->state_dir, "The coordinator's --state_dir").Required();
  restore.AddOption("--store", options->store, "The coordinator's --store, if it has one");
  restore.AddFlag("--force", options->force, "Overwrite the jobs in the store");
  restore.AddOption("--flag", options->more, "Another flag of the coordinator: --store_tls=DIR");
  restore.SetAction([options, &session] { session.Fail(Restore(*options)); });
}

}  // namespace muster::cli
