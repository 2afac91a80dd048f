// Which store the command line names, and the wait for it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/coordinator/store/etcd_client.h"
#include "services/coordinator/store/etcd_store.h"
#include "services/coordinator/store/store.h"

namespace muster {

// What --store says: where a store is.
struct StoreLocation {
  std::string file;                  // of SQLite; "": it is etcd
  std::vector<std::string> servers;  // of etcd, host:port
  std::string prefix;                // of all keys there: "/muster/"

  // "sqlite:PATH", or "etcd://HOST:PORT,HOST:PORT/PREFIX" (without one: /muster); "": SQLite in the
  // file `usual`. INVALID_ARGUMENT.
  static absl::StatusOr<StoreLocation> Parse(absl::string_view text, const std::string& usual);
};

// Made from --store, --store_tls, --store_user, --store_password_file, --store_lease and
// --adopt_state_dir. Not thread-safe; outlives the store that it opens.
class StoreChoice {
 public:
  // INVALID_ARGUMENT: a flag; CERTIFICATE_FILES as EtcdClient has it. The message names the flag.
  static absl::StatusOr<std::unique_ptr<StoreChoice>> FromFlags(const std::string& state_dir);

  // Whether several coordinators take turns with the store, and Open() waits for ours.
  bool takes_turns() const { return client_ != nullptr; }
  const std::string& file() const { return location_.file; }  // "": none of this host

  static constexpr absl::Duration kCampaignInterval = absl::Milliseconds(300);
  struct Turn {
    std::string address;  // of this coordinator, for those who must go to it
    // Why it is not our turn yet; told at every change of it.
    std::function<void(const absl::Status&)> waiting;
    // Waits so long; false: the process is to end.
    std::function<bool(absl::Duration)> wait;
    // See EtcdStore::Options.
    std::function<void(const absl::Status&)> lost;
  };
  // The errors of SqliteStore::Open and EtcdStore::Open, except for those that pass in time;
  // CANCELLED: the process is to end. Of an etcd that turns us away for our certificate, or for
  // having none, the message says so, and which flag to look at (reason "STORE_UNREACHABLE").
  absl::StatusOr<std::unique_ptr<Store>> Open(const Turn& turn);

  // Has `fill` put a backup in, with Store::Import. With `give_up` the store is empty then: what
  // lay in etcd is gone, a file of SQLite is there until `fill` has succeeded and is kept beside it
  // under another name. UNAVAILABLE (reason "STORE_LOCKED"): a coordinator has it. The errors of
  // SqliteStore::Replace, EtcdStore::Open and `fill`.
  absl::Status Restore(bool give_up, const std::function<absl::Status(Store&)>& fill) const;

  // The tokens of the store as it is; none, where there is no file. The errors of SqliteStore::Open
  // and EtcdStore::Open.
  absl::StatusOr<std::vector<Store::Token>> Tokens() const;

 private:
  absl::StatusOr<EtcdStore::Options> EtcdOptions() const;
  absl::StatusOr<std::unique_ptr<Store>> AwaitTurn(const Turn& turn) const;
  absl::Status Fill(bool give_up, const std::function<absl::Status(Store&)>& fill) const;
  absl::Status Explained(const absl::Status& refused) const;
  StoreChoice(std::string state_dir, StoreLocation location, std::unique_ptr<EtcdClient> client)
      : state_dir_(std::move(state_dir)),
        location_(std::move(location)),
        client_(std::move(client)) {}

  const std::string state_dir_;
  const StoreLocation location_;
  const std::unique_ptr<EtcdClient> client_;  // null: SQLite
};

}  // namespace muster
