// Puts a backup in the place of a store.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "services/coordinator/store_choice.h"

namespace muster {

enum class Occupied { kRefuse, kGiveUp };

// Looks at all of the backup first; the store is new then, or as it was. A file of SQLite that is
// given up is kept beside it, and what it knows of revoked tokens goes on, where it can be read.
// Says in the log what it has done, and that tokens which were revoked since the backup are valid
// again. The errors of BackupReader, of opening the store and of Store::Import; UNAVAILABLE (reason
// "STORE_LOCKED"): a coordinator uses the store.
absl::Status RestoreBackup(const std::string& backup, const StoreChoice& choice, Occupied occupied);

// The highest number at the end of a name in this folder of jobs ("net-7"); 0: there is none. A job
// made later must not find the files of one that the backup does not know.
uint64_t HighestNumberIn(const std::string& jobs);

}  // namespace muster
