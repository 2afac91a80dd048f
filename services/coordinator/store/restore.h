// Puts a backup in the place of a store.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "services/coordinator/store/store_choice.h"

namespace muster {

enum class Occupied { kRefuse, kGiveUp };

// Looks at all of the backup first; the store is new then, or as it was. A file of SQLite that is
// given up is kept beside it, and what it knows of revoked tokens goes on, where it can be read.
// Says in the log what it has done, and that tokens which were revoked since the backup are valid
// again. The errors of BackupReader, of opening the store and of Store::Import; UNAVAILABLE (reason
// "STORE_LOCKED"): a coordinator uses the store.
absl::Status RestoreBackup(const std::string& backup, const StoreChoice& choice, Occupied occupied);

}  // namespace muster
