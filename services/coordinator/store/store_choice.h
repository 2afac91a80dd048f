// Selects the store by command-line flags, and waits for leadership.
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

// The location of a store, as --store gives it.
struct StoreLocation {
  std::string file;                  // the SQLite file; "" for etcd
  std::vector<std::string> servers;  // of etcd: host:port
  std::string prefix;                // of all keys in etcd: "/muster/"

  // Parses "sqlite:PATH" or "etcd://HOST:PORT,HOST:PORT/PREFIX" (default prefix: /muster). "" means
  // SQLite in the file `usual`. Returns INVALID_ARGUMENT otherwise.
  static absl::StatusOr<StoreLocation> Parse(absl::string_view text, const std::string& usual);
};

// Created from --store, --store_tls, --store_user, --store_password_file, --store_lease and
// --adopt_state_dir. Must outlive the store that it opens. Not thread-safe.
class StoreChoice {
 public:
  // Returns INVALID_ARGUMENT for a bad flag, or CERTIFICATE_FILES as EtcdClient does. The message
  // names the flag.
  static absl::StatusOr<std::unique_ptr<StoreChoice>> FromFlags(const std::string& state_dir);

  // Returns true if several coordinators share the store. Then Open() waits until this one leads.
  bool takes_turns() const { return client_ != nullptr; }
  const std::string& file() const { return location_.file; }  // "": not on this host

  static constexpr absl::Duration kCampaignInterval = absl::Milliseconds(300);
  struct Turn {
    std::string address;  // of this coordinator, for clients that must go to the leader
    // Called with the reason of the wait, at every change of it.
    std::function<void(const absl::Status&)> waiting;
    // Waits for a duration. Returns false if the process must exit.
    std::function<bool(absl::Duration)> wait;
    // See EtcdStore::Options.
    std::function<void(const absl::Status&)> lost;
  };
  // Blocks until the store is open. Returns an error of SqliteStore::Open or EtcdStore::Open,
  // except for those that waiting can resolve. Returns CANCELLED if the process must exit. If etcd
  // rejects our certificate or its absence, this waits, and the message for `waiting` names the
  // flag to check (reason "STORE_UNREACHABLE").
  absl::StatusOr<std::unique_ptr<Store>> Open(const Turn& turn);

  // Calls `fill`, which must import a backup with Store::Import. With `give_up` the store is
  // emptied first: keys in etcd are deleted. A SQLite file stays until `fill` succeeds and is then
  // kept beside the new one under another name.
  // Returns UNAVAILABLE (reason "STORE_LOCKED") if a coordinator uses the store, or an error of
  // SqliteStore::Replace, EtcdStore::Open or `fill`.
  absl::Status Restore(bool give_up, const std::function<absl::Status(Store&)>& fill) const;

  // Returns the tokens of the store. None if the SQLite file does not exist, or is of a schema
  // without tokens. Returns an error of SqliteStore::Open or EtcdStore::Open if the store cannot be
  // opened.
  absl::StatusOr<std::vector<Store::Token>> Tokens() const;

 private:
  absl::StatusOr<EtcdStore::Options> EtcdOptions(const std::string& address) const;
  absl::StatusOr<std::unique_ptr<Store>> AwaitTurn(const Turn& turn) const;
  absl::Status Fill(bool give_up, const std::function<absl::Status(Store&)>& fill) const;
  StoreChoice(std::string state_dir, StoreLocation location, std::unique_ptr<EtcdClient> client)
      : state_dir_(std::move(state_dir)),
        location_(std::move(location)),
        client_(std::move(client)) {}

  const std::string state_dir_;
  const StoreLocation location_;
  const std::unique_ptr<EtcdClient> client_;  // null: SQLite
};

}  // namespace muster
