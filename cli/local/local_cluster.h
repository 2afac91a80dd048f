// Runs a whole cluster as processes on this machine: coordinator, ps and workers on loopback.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/local/process.h"
#include "lib/fleet/channel.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster::cli {

// Members are called "coordinator", "ps-0", "ps-1", ..., "worker-0", ... All ports are chosen by
// the system. Files below dir():
//   state/                 the coordinator's state folder (jobs, checkpoints)
//   logs/<name>.log        every start of the member appends to it
//   coordinator.address    "127.0.0.1:43121"
//   page.address           "http://127.0.0.1:40121"
//   cluster.json           the record of a detached cluster, which Open() reads
//   sockets/<name>.sock    workers accept programs there, with Options::accept_programs
// Thread-compatible. Members with Lifetime::kWithParent die with the thread that called Start(),
// Restart() or Heal().
class LocalCluster {
 public:
  struct Options {
    std::string dir;  // created if it is missing
    int ps = 1;
    int workers = 1;
    int ps_threads = 0;           // shard threads of each ps; 0: usable cores / ps, at least 1
    std::string devices = "cpu";  // of each worker
    int threads_per_device = 0;   // 0: (usable cores - 1) / workers, at least 1
    absl::Duration lease = absl::Seconds(5);
    // Appended to the flags of each process of the role, for example "--reflection=true".
    std::vector<std::string> coordinator_flags;
    std::vector<std::string> ps_flags;
    std::vector<std::string> worker_flags;
    // Workers listen at program_socket(). Else those of a detached cluster listen at their default
    // sockets, and others at none.
    bool accept_programs = false;
    ClientSecurity security;  // for this object's own calls; members have flags
    Lifetime lifetime = Lifetime::kWithParent;
    absl::Duration start_timeout = absl::Seconds(60);
  };

  // Starts a cluster and blocks until every member is attached: for up to `start_timeout` until the
  // coordinator listens, then for up to `start_timeout` until all members are attached. On an error
  // everything started is stopped.
  // Returns UNAVAILABLE with the end of the member's log if one does not come up, NOT_FOUND if a
  // binary is missing (see FindBinary).
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const Options& options);
  // Returns the detached cluster that an earlier process started in `dir`. Its members may have
  // ended, and its start may have been interrupted (see whole()).
  // Returns NOT_FOUND if there is no record of a cluster, DATA_LOSS if the record is damaged.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Open(const std::string& dir);
  ~LocalCluster();  // calls Shutdown() unless the members are detached

  // The address of the coordinator's gRPC port. target() adds the TLS and token of
  // options().security.
  const std::string& address() const { return target_.address(); }
  const CoordinatorTarget& target() const { return target_; }
  std::string page() const;  // URL of the status page, "http://127.0.0.1:40121"
  const std::string& dir() const { return options_.dir; }
  // After Open() only dir, ps, workers, devices and threads_per_device are set.
  const Options& options() const { return options_; }
  std::vector<std::string> names() const;    // coordinator first
  pid_t pid(const std::string& name) const;  // 0 if it does not run
  bool running(const std::string& name) const { return pid(name) != 0; }
  bool any_running() const;
  // False after Open() if the start of the cluster was interrupted before all members were started.
  // Heal() cannot add the missing members.
  bool whole() const { return whole_; }
  std::string log_path(const std::string& name) const;
  // The path of the Unix socket of a worker, below dir() if that is short enough for a socket.
  // Requires: options().accept_programs.
  std::string program_socket(const std::string& worker) const;

  // Sends a signal. With SIGKILL it blocks until the process has ended. Returns FAILED_PRECONDITION
  // if the member does not run.
  absl::Status Kill(const std::string& name, int signal);
  // Blocks until a member ends by itself, for example after SIGTERM. Returns DEADLINE_EXCEEDED
  // after `timeout`.
  absl::Status AwaitExit(const std::string& name, absl::Duration timeout);
  // Starts a member again with the same flags in the same folder, after SIGKILL if it still runs.
  // The coordinator keeps its port and its state, and listens on return. A ps or worker may not be
  // attached yet.
  absl::Status Restart(const std::string& name);

  struct Revival {
    std::string name;
    pid_t before = 0;  // 0 if Kill() or AwaitExit() ended it
    std::string end;   // DescribeEnd() of the process before
    pid_t pid = 0;
  };
  // Restarts every member that does not run, the coordinator first. Returns the members it
  // restarted. If a signal ends the coordinator again while it starts, the next call restarts it.
  absl::StatusOr<std::vector<Revival>> Heal();

  // Blocks until every member is attached that was started and not ended by Kill() or AwaitExit().
  // Returns UNAVAILABLE if a member ends or is missing after `timeout`.
  absl::Status AwaitAttached(absl::Duration timeout) const;
  absl::StatusOr<v1::ListMembersResponse> ListMembers() const;

  // Sends SIGTERM to the coordinator, waits until it has ended, then sends SIGTERM to workers and
  // ps. A process that does not end within about `grace` gets SIGKILL. The coordinator of a
  // detached cluster saves its running jobs before it ends. In other clusters jobs lose the steps
  // since their last checkpoint. Removes the record of a detached cluster.
  void Shutdown(absl::Duration grace = absl::Seconds(10));

 private:
  struct MemberProcess {
    std::vector<std::string> argv;
    Process process;
  };

  explicit LocalCluster(Options options) : options_(std::move(options)) {}
  absl::Status StartAll();
  absl::Status StartCoordinator();
  // Starts a member. If it is detached, it is in the record on return, or it has ended.
  absl::Status Launch(const std::string& name);
  absl::Status SaveRecord() const;
  absl::Status MakeSocketFolder();
  std::string LogTail(const std::string& name) const;

  Options options_;
  std::string directory_;   // working directory of members; data paths of jobs are relative to it
  std::string socket_dir_;  // "": workers accept no programs
  CoordinatorTarget target_ = "";
  std::map<std::string, MemberProcess> members_;
  bool whole_ = false;
};

// Returns whether `info` describes the running coordinator of a detached cluster on this machine.
bool IsLocalCluster(const v1::ServerInfo& info);

// Returns the path of the binary of "coordinator", "ps" or "worker". Searches $MUSTER_BIN_DIR, the
// runfiles of a Bazel test, the folder of this program and the folders above it, for
// <folder>/<role> and <folder>/services/<role>/main. Returns NOT_FOUND with the folders that it
// searched.
absl::StatusOr<std::string> FindBinary(const std::string& role);

// Returns $HOME/.muster/local.
std::string DefaultLocalDir();

// Returns the command for the cluster in `dir`: "muster local down", with "--dir" unless it is the
// default.
std::string LocalCommand(const std::string& verb, const std::string& dir);

}  // namespace muster::cli
