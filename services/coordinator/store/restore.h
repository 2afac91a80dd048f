// Replaces a store by a backup.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "services/coordinator/store/store_choice.h"

namespace muster {

enum class Occupied { kRefuse, kGiveUp };

// Checks the whole backup first. Then a SQLite store is either completely replaced or unchanged. A
// store in etcd may be unusable after an error, until a restore with kGiveUp succeeds. A replaced
// SQLite file is kept beside the new one. Tokens that were revoked in the replaced store stay
// revoked, if that store can be read.
//
// Logs the result, and a warning that tokens revoked since the backup are valid again.
// Returns an error of StoreBackupReader, of opening the store or of Store::Import, or UNAVAILABLE
// (reason "STORE_LOCKED") if a coordinator uses the store.
absl::Status RestoreStoreBackup(const std::string& backup, const StoreChoice& choice,
                                Occupied occupied);

}  // namespace muster
