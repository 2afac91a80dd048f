// muster local: a cluster that stays on this machine.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/exit_code.h"
#include "cli/local_cluster.h"
#include "cli/output.h"
#include "cli/session.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

struct UpOptions {
  std::string dir = DefaultLocalDir();
  int ps = 2;
  int workers = 2;
  std::string devices = "cpu";
};

constexpr absl::Duration kStopGrace = absl::Seconds(15);

absl::Status Up(const UpOptions& options) {
  if (auto running = DetachedCluster::Load(options.dir);
      running.ok() && running->coordinator_alive()) {
    return WithReason(
        absl::AlreadyExistsError(absl::StrCat("a local cluster runs already at ", running->address,
                                              "; muster local down stops it")),
        "ALREADY_RUNNING");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<LocalCluster> cluster,
                   LocalCluster::Start({.dir = options.dir,
                                        .ps = options.ps,
                                        .workers = options.workers,
                                        .devices = options.devices,
                                        .lifetime = Lifetime::kDetached}));
  std::printf("%s\n", cluster->address().c_str());
  std::fprintf(stderr,
               "%d ps and %d workers are up; state and logs in %s\n"
               "  muster submit examples/linear.yaml --wait\n"
               "  muster local down\n",
               options.ps, options.workers, cluster->dir().c_str());
  if (options.dir != DefaultLocalDir()) {
    std::fprintf(stderr, "  export MUSTER_SERVER=%s\n", cluster->address().c_str());
  }
  return absl::OkStatus();
}

absl::Status Down(const std::string& dir) {
  ASSIGN_OR_RETURN(DetachedCluster cluster, DetachedCluster::Load(dir));
  cluster.Stop(dir, kStopGrace);
  std::fprintf(stderr, "the local cluster is down; its state stays in %s\n", dir.c_str());
  return absl::OkStatus();
}

absl::Status PrintStatus(const std::string& dir, Session& session) {
  ASSIGN_OR_RETURN(const DetachedCluster cluster, DetachedCluster::Load(dir));
  Table table({"NAME", "STATE", "PID", "LOG"});
  for (const DetachedCluster::Member& member : cluster.members) {
    table.Add({member.name, member.process.alive() ? "running" : "ended",
               absl::StrCat(member.process.pid), member.log});
  }
  std::printf("%s\n%s", cluster.address.c_str(), table.ToString().c_str());
  if (!cluster.coordinator_alive()) session.exit_code = kExitUnavailable;
  return absl::OkStatus();
}

}  // namespace

void AddLocalCommands(CLI::App& app, Session& session) {
  CLI::App* local = AddCommand(app, "local", "A cluster that stays on this machine",
                               "muster local up --ps 2 --workers 2");
  local->require_subcommand(1);

  auto options = std::make_shared<UpOptions>();
  CLI::App* up = AddCommand(*local, "up", "Start coordinator, ps and workers",
                            "muster local up --ps 1 --workers 4");
  up->add_option("--dir", options->dir, "State and logs; default: ~/.muster/local");
  up->add_option("--ps", options->ps, "Parameter servers; default: 2")
      ->check(CLI::Range(1, 64).description(""));
  up->add_option("--workers", options->workers, "Workers; default: 2")
      ->check(CLI::Range(1, 64).description(""));
  up->add_option("--devices", options->devices, "Of each worker: cpu, cpu:2");
  up->callback([options, &session] { session.Fail(Up(*options)); });

  auto dir = std::make_shared<std::string>(DefaultLocalDir());
  CLI::App* down =
      AddCommand(*local, "down", "Stop the cluster; its state stays", "muster local down");
  down->add_option("--dir", *dir, "Where it was started; default: ~/.muster/local");
  down->callback([dir, &session] { session.Fail(Down(*dir)); });

  CLI::App* status = AddCommand(*local, "status", "Address and processes", "muster local status");
  status->add_option("--dir", *dir, "Where it was started; default: ~/.muster/local");
  status->callback([dir, &session] { session.Fail(PrintStatus(*dir, session)); });
}

}  // namespace muster::cli
