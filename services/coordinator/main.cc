// The coordinator's program: flags, objects, wiring.
#include <glog/logging.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_posix.h"
#include "lib/file/beneath.h"
#include "lib/file/replaced_file.h"
#include "lib/fleet/channel.h"
#include "lib/fleet/daemon.h"
#include "lib/fleet/health_server.h"
#include "lib/fleet/security_flags.h"
#include "lib/job/path_rules.h"
#include "lib/limits/limits.h"
#include "lib/listener/grpc_listener.h"
#include "lib/security/identity.h"
#include "lib/security/tls_folder.h"
#include "lib/status/status.h"
#include "lib/telemetry/metrics.h"
#include "lib/version/build.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/api/rpc_services.h"
#include "services/coordinator/api/token_table.h"
#include "services/coordinator/common/caller.h"
#include "services/coordinator/common/opening_guard.h"
#include "services/coordinator/common/ticker.h"
#include "services/coordinator/coordinator.h"
#include "services/coordinator/operations/ended_jobs.h"
#include "services/coordinator/status_page/served_page.h"
#include "services/coordinator/store/restore.h"
#include "services/coordinator/store/standby.h"
#include "services/coordinator/store/store_choice.h"

ABSL_FLAG(std::string, listen, "",
          "host:port of the gRPC services; port 0 picks one; default 0.0.0.0:7070 with --tls or "
          "--insecure, else 127.0.0.1:7070");
ABSL_FLAG(std::string, metrics, "",
          "host:port of /metrics; port 0 picks one; default 0.0.0.0:9400 with --tls or --insecure, "
          "else 127.0.0.1:9400");
ABSL_FLAG(std::string, state_dir, "./muster-state",
          "folder of the store, checkpoints and metrics logs");
ABSL_FLAG(std::string, advertise, "",
          "host:port to which a standby refers callers while this coordinator leads; default: this "
          "host's name and the port of --listen");
ABSL_FLAG(std::string, restore, "",
          "file of a backup (muster admin backup) to restore into the store; exits then; requires "
          "that no "
          "coordinator runs");
ABSL_FLAG(bool, force, false,
          "with --restore: replace the jobs and tokens that the store already has");
ABSL_FLAG(std::string, address_file, "",
          "file to write the gRPC address (host:port) to once it is bound");
ABSL_FLAG(bool, data_visible, false,
          "whether data paths of jobs can be read here: CreateJob then checks them");
ABSL_FLAG(
    std::string, data_roots, "",
    "comma-separated folders that must contain all files that jobs name; empty: any file that "
    "this user may read");
ABSL_FLAG(bool, reflection, true,
          "serve gRPC reflection (v1alpha), for grpcurl and the like, to callers that may read");
ABSL_FLAG(absl::Duration, lease, absl::Seconds(5),
          "how long a member may be silent before it counts as lost; at least 1s");
ABSL_FLAG(
    absl::Duration, connection_age, muster::limits::kConnectionAgeMax,
    "with --tls: maximum age of a connection, after which its client must authenticate again; "
    "calls in progress get a sixth of it more; at least 1s");
ABSL_FLAG(absl::Duration, drain_timeout, absl::Seconds(20),
          "how long the coordinator saves running jobs after SIGTERM, before it ends; 0: it does "
          "not save them");
ABSL_FLAG(int64_t, ended_jobs_keep, muster::limits::kEndedJobsKept,
          "how many jobs that have ended are kept, the newest; 0: all");
ABSL_FLAG(absl::Duration, ended_jobs_ttl, muster::limits::kEndedJobsKeptFor,
          "how long jobs that have ended are kept; 0: forever");
ABSL_FLAG(
    bool, ended_jobs_checkpoints, false,
    "also delete ended jobs that have checkpoints, with these; otherwise they stay until a user "
    "deletes them");

namespace muster {
namespace {

// Minimum of --lease. With a shorter one, a pause of a busy machine would look like the death of a
// member.
constexpr absl::Duration kLeaseMin = absl::Seconds(1);
// Minimum of --connection_age. Handshakes would take most of the time of a shorter life.
constexpr absl::Duration kConnectionAgeMin = absl::Seconds(1);
constexpr int kGracePartOfAge = 6;
constexpr int kPort = 7070;
constexpr int kMetricsPort = 9400;
// How long the shutdown waits for calls. Members' streams and watches never end by themselves.
// Clients repeat calls that are cut off, and a call that changes something has taken effect once it
// is stored.
constexpr auto kShutdownGrace = std::chrono::milliseconds(100);

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      return kExitData;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:            // a disk error: another attempt may succeed
    case absl::StatusCode::kResourceExhausted:  // a full disk: there may be space at the next start
      return kExitUnavailable;
    case absl::StatusCode::kInternal:
      return kExitInternal;
    default:
      return kExitConfig;
  }
}

// Returns `result` with the name of the flag in front of its error.
absl::Status Of(absl::string_view flag, const absl::Status& result) {
  return Annotate(result, flag);
}
template <typename T>
absl::StatusOr<T> Of(absl::string_view flag, absl::StatusOr<T> result) {
  if (!result.ok()) return Annotate(result.status(), flag);
  return result;
}

std::string HostOf(const std::string& listen) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  return host == "0.0.0.0" || host == "[::]" || host.empty() ? "127.0.0.1" : host;
}

// Returns the address at which other hosts reach this coordinator.
std::string AdvertisedAddress(const std::string& listen, int port) {
  if (const std::string flag = absl::GetFlag(FLAGS_advertise); !flag.empty()) return flag;
  if (IsLoopback(listen)) return absl::StrCat(HostOf(listen), ":", port);
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return absl::StrCat(name, ":", port);
}

// Leadership is lost: exits now. The new leader takes over, and members ignore messages of the old
// term. Exits without cleanup, because this process may have been stopped for long.
[[noreturn]] void EndDeposed(const absl::Status& why) {
  LOG(ERROR) << "this coordinator lost the leadership and exits: " << why.message() << " ["
             << ReasonOf(why) << "]";
  std::_Exit(kExitUnavailable);
}

// Restores a backup into the store. A signal ends this at once: the store knows that the restore is
// unfinished.
int Restore() {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);  // the parent process may have blocked them
  const auto choice = StoreChoice::FromFlags(absl::GetFlag(FLAGS_state_dir));
  if (!choice.ok()) {
    LOG(ERROR) << choice.status().message();
    return ExitCodeOf(choice.status());
  }
  const absl::Status restored =
      RestoreStoreBackup(absl::GetFlag(FLAGS_restore), **choice,
                         absl::GetFlag(FLAGS_force) ? Occupied::kGiveUp : Occupied::kRefuse);
  LOG_IF(ERROR, !restored.ok()) << restored.message() << " [" << ReasonOf(restored) << "]";
  return restored.ok() ? kExitOk : ExitCodeOf(restored);
}

// Everything that the command line says, checked.
struct Settings {
  absl::Duration lease;
  absl::Duration connection_age;
  EndedJobs::Retention retention;
  DaemonSecurity security;
  std::string listen;
  std::string metrics;
  PathRules paths;
};

absl::StatusOr<Settings> SettingsFromFlags() {
  Settings settings{.lease = absl::GetFlag(FLAGS_lease),
                    .connection_age = absl::GetFlag(FLAGS_connection_age),
                    .retention = {.keep = absl::GetFlag(FLAGS_ended_jobs_keep),
                                  .ttl = absl::GetFlag(FLAGS_ended_jobs_ttl),
                                  .with_checkpoints = absl::GetFlag(FLAGS_ended_jobs_checkpoints)}};
  const auto too_short = [](absl::string_view flag, absl::Duration least, absl::Duration given) {
    return absl::InvalidArgumentError(absl::StrCat(flag, ": must be at least ",
                                                   absl::FormatDuration(least), " (is ",
                                                   absl::FormatDuration(given), ")"));
  };
  if (settings.lease < kLeaseMin) return too_short("--lease", kLeaseMin, settings.lease);
  if (settings.connection_age < kConnectionAgeMin) {
    return too_short("--connection_age", kConnectionAgeMin, settings.connection_age);
  }
  const EndedJobs::Retention& retention = settings.retention;
  if (retention.keep < 0 || retention.ttl < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--ended_jobs_keep and --ended_jobs_ttl: must not be negative (are ", retention.keep,
        " and ", absl::FormatDuration(retention.ttl), "); 0 keeps all, for ever"));
  }
  ASSIGN_OR_RETURN(settings.security, SecurityFromFlags());
  ASSIGN_OR_RETURN(
      settings.listen,
      Of("--listen", ListenAddress(settings.security, absl::GetFlag(FLAGS_listen), kPort)));
  ASSIGN_OR_RETURN(settings.metrics,
                   Of("--metrics", ListenAddress(settings.security, absl::GetFlag(FLAGS_metrics),
                                                 kMetricsPort)));
  ASSIGN_OR_RETURN(settings.paths,
                   Of("--data_roots", PathRules::Parse(absl::GetFlag(FLAGS_data_roots))));
  LOG_IF(WARNING, settings.paths.any() && settings.security.reaches_beyond_host())
      << "--data_roots: without it a user who submits jobs can train on any file that this user "
         "may read";
  return settings;
}

absl::StatusOr<std::unique_ptr<TlsServer>> OpenTls(const DaemonSecurity& security) {
  if (security.tls.empty()) return nullptr;
  return Of("--tls", TlsServer::Open({security.tls}));
}

absl::StatusOr<std::unique_ptr<GrpcListener>> Listen(const Settings& settings, TlsServer* tls,
                                                     const CallerStamp& stamp,
                                                     const std::atomic<bool>& crowded) {
  auto listener = GrpcListener::Listen(
      settings.listen,
      {.crowded = [&crowded] { return crowded.load(); },
       .tls = tls,
       .stamp_field = CallerStamp::kField,
       .stamp = [&stamp](const auto& client,
                         absl::string_view address) { return stamp.Sign(client, address); }});
  if (listener.ok()) return listener;
  return absl::Status(
      listener.status().code(),
      absl::StrCat("cannot listen on ", settings.listen, " (", listener.status().message(),
                   "): is another process using the port, and is the host one of this machine? "
                   "Give another --listen=host:port; port 0 picks a free one"));
}

absl::Status WriteAddress(const std::string& address) {
  const std::string path = absl::GetFlag(FLAGS_address_file);
  if (path.empty()) return absl::OkStatus();
  const absl::Status written = ReplaceFile(path, address + "\n");
  if (written.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--address_file: ", written.message()));
}

// Serves until a signal comes. Returns CANCELLED if it comes before this coordinator leads.
absl::Status Serve(const Settings& settings, const StopSignal& stop) {
  SetDataRoots(settings.paths.roots());
  ASSIGN_OR_RETURN(const std::unique_ptr<TlsServer> tls, OpenTls(settings.security));
  Metrics metrics(ToLabels(ThisBuild()));
  ExportSecurity(settings.security, Role::kCoordinator, metrics, tls.get());
  RETURN_IF_ERROR(Of("--metrics", metrics.Serve(settings.metrics)));
  ASSIGN_OR_RETURN(const auto health, HealthServerFromFlags("coordinator"));
  ASSIGN_OR_RETURN(const auto choice, StoreChoice::FromFlags(absl::GetFlag(FLAGS_state_dir)));

  // Callers that connect while another coordinator leads are referred to it.
  ConnectionAge age;
  if (tls != nullptr) {
    age = {.most = settings.connection_age, .grace = settings.connection_age / kGracePartOfAge};
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder standby_builder;
  ConfigureServer(standby_builder, age);
  Standby standby(standby_builder);
  const CallerStamp stamp;
  std::atomic<bool> crowded = false;  // true while many answers wait for callers to read them
  ASSIGN_OR_RETURN(const auto listener, Listen(settings, tls.get(), stamp, crowded));
  const std::string address = absl::StrCat(HostOf(settings.listen), ":", listener->port());
  const auto open = [&] {
    listener->Open([&standby](int socket) { standby.Serve(socket); });
    return WriteAddress(address);
  };
  if (choice->takes_turns()) RETURN_IF_ERROR(open());
  ASSIGN_OR_RETURN(auto store,
                   choice->Open({.address = AdvertisedAddress(settings.listen, listener->port()),
                                 .waiting =
                                     [&](const absl::Status& why) {
                                       LOG(INFO) << "standing by on " << address << ": "
                                                 << why.message() << " [" << ReasonOf(why) << "]";
                                       standby.Explain(why);
                                     },
                                 .wait = [&](absl::Duration time) { return stop.Await(time) == 0; },
                                 .lost = EndDeposed}));

  Ticker ticker;
  std::optional<OpeningGuard> opening(std::in_place, stop);
  ASSIGN_OR_RETURN(const auto coordinator,
                   Coordinator::Open({.state_dir = absl::GetFlag(FLAGS_state_dir),
                                      .data_visible = absl::GetFlag(FLAGS_data_visible),
                                      .insecure = settings.security.insecure,
                                      .paths = settings.paths,
                                      .lease = settings.lease,
                                      .retention = settings.retention,
                                      .metrics = &metrics,
                                      .store = std::move(store),
                                      .store_file = choice->file(),
                                      .store_kind = choice->takes_turns() ? "etcd" : "sqlite",
                                      .dispatch_soon = [&ticker] { ticker.DispatchSoon(); },
                                      .opened_one = [&opening] { opening->Advanced(); }}));
  opening.reset();
  ASSIGN_OR_RETURN(const auto tokens, TokenTable::Open(&coordinator->store()));
  const Access access =
      tls != nullptr ? Access::Checked(&stamp, tokens.get()) : Access::Open(&stamp);
  ASSIGN_OR_RETURN(const auto page, ServedPage::FromFlags(settings.security, &access, tokens.get(),
                                                          coordinator.get()));
  RpcServices services({.coordinator = coordinator.get(),
                        .tokens = tokens.get(),
                        .access = &access,
                        .metrics = &metrics,
                        .crowded = &crowded,
                        .age = age,
                        .reflection = absl::GetFlag(FLAGS_reflection)});
  standby.GiveWayTo(&services.server());
  if (!choice->takes_turns()) RETURN_IF_ERROR(open());
  LOG(INFO) << "serving on " << address << (tls != nullptr ? ", with TLS" : "") << ", metrics at "
            << metrics.url() << (page != nullptr ? ", status page at " + page->url() : "");

  health->ReadyWhile([] { return true; });
  ticker.Start(
      Coordinator::kTickInterval, [&] { coordinator->Tick(); }, [&] { coordinator->Dispatch(); });
  stop.Await();

  LOG(INFO) << "stopping";
  coordinator->checkpoints().SaveRunningJobs(absl::GetFlag(FLAGS_drain_timeout));
  ticker.Stop();
  health->Leave();
  services.server().GetHealthCheckService()->SetServingStatus(false);
  listener->StopAccepting();
  services.server().Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  return absl::OkStatus();
}

int Main() {
  if (!absl::GetFlag(FLAGS_restore).empty()) return Restore();
  const StopSignal stop;  // before the first thread
  const absl::StatusOr<Settings> settings = SettingsFromFlags();
  const absl::Status served = settings.ok() ? Serve(*settings, stop) : settings.status();
  if (served.ok() || absl::IsCancelled(served)) return kExitOk;
  LOG(ERROR) << served.message() << " [" << ReasonOf(served) << "]";
  return ExitCodeOf(served);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const muster::ExitCode parsed = muster::ParseCommandLine(
      argc, argv, "Muster's coordinator: queues jobs, plans them, keeps their checkpoints.");
  return parsed == muster::kExitOk ? muster::Main() : parsed;
}
