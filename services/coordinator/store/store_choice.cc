#include "services/coordinator/store/store_choice.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "lib/checkpoint/folder.h"
#include "lib/status/status.h"
#include "services/coordinator/store/etcd_store.h"
#include "services/coordinator/store/jobs_folder.h"
#include "services/coordinator/store/sqlite_store.h"
#include "services/coordinator/store/state_folder.h"

ABSL_FLAG(std::string, store, "",
          "where jobs are kept: sqlite:PATH, or etcd://HOST:PORT,HOST:PORT/PREFIX, which several "
          "coordinators may share that take turns; empty: SQLite in --state_dir");
ABSL_FLAG(std::string, store_tls, "",
          "folder with the ca.crt of etcd's authority and, where etcd wants them, tls.crt and "
          "tls.key; empty: no TLS to etcd");
ABSL_FLAG(std::string, store_user, "", "name to give etcd; empty: none");
ABSL_FLAG(std::string, store_password_file, "", "file with the password of --store_user");
ABSL_FLAG(absl::Duration, store_lease, absl::Seconds(5),
          "with etcd: how long a coordinator that is silent still leads; 2s to 60s");
ABSL_FLAG(bool, adopt_state_dir, false,
          "--state_dir takes the place of the one that the store (in etcd) belongs to, or the "
          "folder jobs in it of the one that it had, which is lost");

namespace muster {
namespace {

constexpr char kEtcdScheme[] = "etcd://";
constexpr char kRestorer[] = "(a restore of a backup)";  // the address of a leader that restores
constexpr char kSqliteScheme[] = "sqlite:";
constexpr absl::Duration kLeaseMin = absl::Seconds(2);
constexpr absl::Duration kLeaseMax = absl::Seconds(60);

// Returns true if the caller should wait: another coordinator leads, or etcd does not answer.
bool Passes(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return reason == "STORE_LOCKED" || reason == "STORE_UNREACHABLE";
}

// Adds what to try if etcd rejects our TLS connection, because gRPC only reports that it is closed.
absl::Status WithTlsHint(const absl::Status& refused) {
  if (ReasonOf(refused) != "STORE_UNREACHABLE") return refused;
  const std::string tls = absl::GetFlag(FLAGS_store_tls);
  const std::string hint =
      tls.empty()
          ? "If etcd speaks TLS, give --store_tls=DIR with the ca.crt of its authority, and with a "
            "tls.crt and tls.key if it asks for client certificates"
          : absl::StrCat("If etcd rejects our certificate: the tls.crt in --store_tls=", tls,
                         " must be there, be signed by the authority that etcd asks for "
                         "(--trusted-ca-file), be for clients, and be in force");
  return WithReason(absl::UnavailableError(absl::StrCat(refused.message(), ". ", hint)),
                    "STORE_UNREACHABLE");
}

// If this process is root, gives the files to the owner of the folder: the coordinator runs as that
// user and must be able to write them. That user may have put anything into the folder. So this
// does not follow links, and leaves files with several names to root.
void GiveToOwnerOf(const std::string& folder, const std::vector<std::string>& paths) {
  struct stat owner {};
  if (geteuid() != 0 || stat(folder.c_str(), &owner) != 0) return;
  for (const std::string& path : paths) {
    const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) continue;
    const absl::Cleanup done = [file] { close(file); };
    struct stat its {};
    if (fstat(file, &its) != 0 || its.st_uid != 0) continue;
    if (!S_ISDIR(its.st_mode) && !(S_ISREG(its.st_mode) && its.st_nlink == 1)) continue;
    if (fchown(file, owner.st_uid, owner.st_gid) == 0) continue;
    LOG(ERROR) << path << ": cannot be given to the owner of " << folder << ": " << strerror(errno)
               << "; the coordinator may not be able to open it";
  }
}

}  // namespace

absl::StatusOr<StoreLocation> StoreLocation::Parse(absl::string_view text,
                                                   const std::string& usual) {
  if (text.empty()) return StoreLocation{.file = usual};
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kSqliteScheme) && !rest.empty()) {
    return StoreLocation{.file = std::string(rest)};
  }
  const auto fault = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': ", what,
                     "; sqlite:PATH, or etcd://HOST:PORT,HOST:PORT/PREFIX, is expected"));
  };
  if (!absl::ConsumePrefix(&rest, kEtcdScheme)) return fault("no such kind of store");
  StoreLocation location;
  const size_t slash = rest.find('/');
  const absl::string_view prefix =
      slash == absl::string_view::npos ? "" : absl::StripSuffix(rest.substr(slash + 1), "/");
  location.prefix = absl::StrCat("/", prefix.empty() ? "muster" : prefix, "/");
  for (const absl::string_view server : absl::StrSplit(rest.substr(0, slash), ',')) {
    const size_t colon = server.rfind(':');
    if (colon == absl::string_view::npos || colon == 0 || colon + 1 == server.size()) {
      return fault(absl::StrCat("'", server, "' is not HOST:PORT"));
    }
    location.servers.emplace_back(server);
  }
  return location;
}

absl::StatusOr<std::unique_ptr<StoreChoice>> StoreChoice::FromFlags(const std::string& state_dir) {
  auto location =
      StoreLocation::Parse(absl::GetFlag(FLAGS_store), absl::StrCat(state_dir, "/coordinator.db"));
  if (!location.ok()) return Annotate(location.status(), "--store");
  std::unique_ptr<EtcdClient> client;
  if (location->file.empty()) {
    const absl::Duration lease = absl::GetFlag(FLAGS_store_lease);
    if (lease < kLeaseMin || lease > kLeaseMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--store_lease: must be ", absl::FormatDuration(kLeaseMin), " to ",
                       absl::FormatDuration(kLeaseMax), " (is ", absl::FormatDuration(lease), ")"));
    }
    auto made = EtcdClient::Create({.servers = location->servers,
                                    .tls = absl::GetFlag(FLAGS_store_tls),
                                    .user = absl::GetFlag(FLAGS_store_user),
                                    .password_file = absl::GetFlag(FLAGS_store_password_file)});
    if (!made.ok()) return Annotate(made.status(), "--store_tls");
    client = *std::move(made);
  }
  return std::unique_ptr<StoreChoice>(
      new StoreChoice(state_dir, *std::move(location), std::move(client)));
}

absl::StatusOr<EtcdStore::Options> StoreChoice::EtcdOptions(const std::string& address) const {
  ASSIGN_OR_RETURN(const StateFolder folder, StateFolder::Open(state_dir_));
  ASSIGN_OR_RETURN(const std::string id, folder.Id());
  return EtcdStore::Options{.client = client_.get(),
                            .prefix = location_.prefix,
                            .address = address,
                            .lease = absl::GetFlag(FLAGS_store_lease),
                            .folder = id,
                            .adopt_folder = absl::GetFlag(FLAGS_adopt_state_dir)};
}

absl::Status StoreChoice::Restore(bool give_up,
                                  const std::function<absl::Status(Store&)>& fill) const {
  const absl::Cleanup give = [this] {
    GiveToOwnerOf(state_dir_, {state_dir_ + "/jobs", state_dir_ + "/folder.id",
                               state_dir_ + "/jobs/folder.id"});
    if (takes_turns()) return;
    const std::string& file = location_.file;
    GiveToOwnerOf(ParentOf(file), {file, file + "-wal", file + "-shm", file + ".lock"});
  };
  const absl::StatusOr<StateFolder> folder = StateFolder::Open(state_dir_);
  RETURN_IF_ERROR(Annotate(folder.status(), "--state_dir"));
  RETURN_IF_ERROR(Fill(give_up, fill));
  // The jobs continue from the files in this folder, so a restore adopts it.
  const absl::Status known = AdoptJobsFolder(*folder);
  LOG_IF(WARNING, !known.ok()) << "the store is restored, but a coordinator may not start with it: "
                               << known.message();
  return absl::OkStatus();
}

absl::Status StoreChoice::Fill(bool give_up,
                               const std::function<absl::Status(Store&)>& fill) const {
  if (takes_turns()) {
    ASSIGN_OR_RETURN(EtcdStore::Options options, EtcdOptions(kRestorer));
    options.give_up = give_up;
    const auto store = EtcdStore::Open(std::move(options));
    return store.ok() ? fill(**store) : WithTlsHint(store.status());
  }
  std::error_code error;
  if (give_up || !std::filesystem::exists(location_.file, error)) {
    return SqliteStore::Replace(location_.file, fill);
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, SqliteStore::Open(location_.file));
  return fill(*store);
}

absl::StatusOr<std::vector<Store::Token>> StoreChoice::Tokens() const {
  if (takes_turns()) {
    ASSIGN_OR_RETURN(EtcdStore::Options options, EtcdOptions(kRestorer));
    ASSIGN_OR_RETURN(const auto store, EtcdStore::Open(std::move(options)));
    return store->Tokens();
  }
  std::error_code error;
  if (!std::filesystem::exists(location_.file, error)) return std::vector<Store::Token>{};
  // A file from before tokens existed is not opened. Opening it would upgrade its schema, and the
  // user may want to return to the older Muster.
  const int64_t schema = SqliteStore::SchemaIn(location_.file);
  if (schema > 0 && schema < SqliteStore::kTokensSince) return std::vector<Store::Token>{};
  ASSIGN_OR_RETURN(const auto store, SqliteStore::Open(location_.file));
  return store->Tokens();
}

absl::StatusOr<std::unique_ptr<Store>> StoreChoice::Open(const Turn& turn) {
  const absl::StatusOr<StateFolder> folder = StateFolder::Open(state_dir_);
  RETURN_IF_ERROR(Annotate(folder.status(), "--state_dir"));
  std::unique_ptr<Store> store;
  if (takes_turns()) {
    ASSIGN_OR_RETURN(store, AwaitTurn(turn));
  } else {
    ASSIGN_OR_RETURN(store, SqliteStore::Open(location_.file));
  }
  if (absl::GetFlag(FLAGS_adopt_state_dir)) RETURN_IF_ERROR(AdoptJobsFolder(*folder));
  return store;
}

absl::StatusOr<std::unique_ptr<Store>> StoreChoice::AwaitTurn(const Turn& turn) const {
  ASSIGN_OR_RETURN(EtcdStore::Options options, EtcdOptions(turn.address));
  options.lost = turn.lost;
  std::string told;
  while (true) {
    auto store = EtcdStore::Open(options);
    if (!Passes(store.status())) return store;
    const absl::Status waits_for = WithTlsHint(store.status());
    const std::string why(waits_for.message());
    if (std::exchange(told, why) != why) turn.waiting(waits_for);
    if (!turn.wait(kCampaignInterval)) return absl::CancelledError("told to stop");
  }
}

}  // namespace muster
