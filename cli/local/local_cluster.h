// A whole cluster as processes on this machine: coordinator, ps and workers on loopback.
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

// Members are called "coordinator", "ps-0", "ps-1", ..., "worker-0", ... All ports are free ones.
// Below dir():
//   state/                 the coordinator's (jobs, checkpoints)
//   logs/<name>.log        appended to by every start of the member
//   coordinator.address    "127.0.0.1:43121"
//   page.address           "http://127.0.0.1:40121"
//   cluster.json           of a detached cluster: what Open() reads
// Thread-compatible. Members started with Lifetime::kWithParent die with the thread that called
// Start(), Restart() or Heal().
class LocalCluster {
 public:
  struct Options {
    std::string dir;  // made if missing
    int ps = 1;
    int workers = 1;
    int ps_threads = 0;           // shard threads of each ps; 0: usable cores / ps, at least 1
    std::string devices = "cpu";  // of each worker
    int threads_per_device = 0;   // 0: (usable cores - 1) / workers, at least 1
    absl::Duration lease = absl::Seconds(5);
    std::vector<std::string> coordinator_flags;  // extra ones, "--reflection=true"
    std::vector<std::string> ps_flags;
    std::vector<std::string> worker_flags;
    ClientSecurity security;  // of this object's own calls; members have theirs by their flags
    Lifetime lifetime = Lifetime::kWithParent;
    absl::Duration start_timeout = absl::Seconds(60);
  };

  // Returns once every member is attached. UNAVAILABLE (with the end of the log of the member at
  // fault) when one does not come up; NOT_FOUND when the binaries are missing (see FindBinary).
  // Everything started is stopped then.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const Options& options);
  // The detached cluster that an earlier process started in `dir`, whatever of it still runs; also
  // one that was not started to its end (see whole()). NOT_FOUND when there is no record of one,
  // DATA_LOSS when the record is damaged.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Open(const std::string& dir);
  ~LocalCluster();  // Shutdown() of what dies with the parent; detached members go on

  // Of the coordinator's gRPC port; the target goes there with options().security.
  const std::string& address() const { return target_.address(); }
  const CoordinatorTarget& target() const { return target_; }
  std::string page() const;  // of the coordinator's status page, "http://127.0.0.1:40121"
  const std::string& dir() const { return options_.dir; }
  const Options& options() const { return options_; }  // after Open(): dir, ps, workers, devices
  std::vector<std::string> names() const;              // coordinator first
  pid_t pid(const std::string& name) const;            // 0: does not run
  bool running(const std::string& name) const { return pid(name) != 0; }
  bool any_running() const;
  // False after Open() where whoever started it ended before all members were started: Heal() would
  // not make it what it was to be.
  bool whole() const { return whole_; }
  std::string log_path(const std::string& name) const;

  // Sends a signal; SIGKILL returns once the process is gone. FAILED_PRECONDITION when it does not
  // run.
  absl::Status Kill(const std::string& name, int signal);
  // Waits for a member to end by itself (after SIGTERM, say). DEADLINE_EXCEEDED.
  absl::Status AwaitExit(const std::string& name, absl::Duration timeout);
  // Starts a member again with the same flags in the same folder (after SIGKILL if it still runs).
  // The coordinator comes back on the same port with the same state and has its port open on
  // return; a ps or worker may not be attached yet.
  absl::Status Restart(const std::string& name);

  struct Revival {
    std::string name;
    pid_t before = 0;  // 0: it was ended by Kill() or AwaitExit()
    std::string end;   // DescribeEnd() of that process
    pid_t pid = 0;
  };
  // Restart() of every member that does not run, the coordinator first.
  absl::StatusOr<std::vector<Revival>> Heal();

  // Waits until every member that was started and not ended by Kill() or AwaitExit() is attached;
  // UNAVAILABLE when one does not come or has ended.
  absl::Status AwaitAttached(absl::Duration timeout) const;
  absl::StatusOr<v1::ListMembersResponse> ListMembers() const;

  // The coordinator first, then workers and ps: SIGTERM, and SIGKILL for what runs after `grace`.
  // The coordinator of a detached cluster saves the jobs that run before it ends; in other clusters
  // they lose the steps since their last checkpoints. The record of a detached cluster is removed.
  void Shutdown(absl::Duration grace = absl::Seconds(10));

 private:
  struct MemberProcess {
    std::vector<std::string> argv;
    Process process;
  };

  explicit LocalCluster(Options options) : options_(std::move(options)) {}
  absl::Status StartAll();
  absl::Status StartCoordinator();
  // A detached member is in the record on return, or has ended.
  absl::Status Launch(const std::string& name);
  absl::Status SaveRecord() const;
  std::string LogTail(const std::string& name) const;

  Options options_;
  std::string directory_;  // that members work in: paths of a job's data are relative to it
  CoordinatorTarget target_ = "";
  std::map<std::string, MemberProcess> members_;
  bool whole_ = false;
};

// Returns whether `info` is of the coordinator of a detached cluster on this machine, which runs.
bool IsLocalCluster(const v1::ServerInfo& info);

// The binary of "coordinator", "ps" or "worker". Looked for in $MUSTER_BIN_DIR, in a Bazel test's
// runfiles, beside this program and in the folders above it, as <folder>/<role> and
// <folder>/services/<role>/main. NOT_FOUND names the places.
absl::StatusOr<std::string> FindBinary(const std::string& role);

// $HOME/.muster/local
std::string DefaultLocalDir();

// The command for the cluster in `dir`: "muster local down", with "--dir" unless it is the default.
std::string LocalCommand(const std::string& verb, const std::string& dir);

}  // namespace muster::cli
