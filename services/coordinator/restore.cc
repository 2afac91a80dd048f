#include "services/coordinator/restore.h"

#include <glog/logging.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "lib/status/status.h"
#include "services/coordinator/backup_file.h"

namespace muster {

uint64_t HighestNumberIn(const std::string& jobs) {
  uint64_t highest = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(jobs, error)) {
    const std::string name = entry.path().stem().string();  // of one being deleted as well
    uint64_t number = 0;
    if (absl::SimpleAtoi(name.substr(name.rfind('-') + 1), &number)) {
      highest = std::max(highest, number);
    }
  }
  return highest;
}

absl::Status RestoreBackup(const std::string& backup, const StoreChoice& choice,
                           Occupied occupied) {
  ASSIGN_OR_RETURN(const std::unique_ptr<BackupReader> reader, BackupReader::Open(backup));
  const uint64_t used = HighestNumberIn(absl::StrCat(choice.state_dir(), "/jobs"));
  int64_t jobs = 0, tokens = 0;
  const auto next = [&] {
    auto record = reader->Next();
    if (record.ok() && record->has_value()) {
      jobs += (*record)->has_job();
      tokens += (*record)->has_token();
    }
    return record;
  };
  RETURN_IF_ERROR(choice.Restore(occupied == Occupied::kGiveUp,
                                 [&](Store& store) { return store.Import(next, used); }));
  LOG(INFO) << "restored " << jobs << " jobs and " << tokens << " tokens, as they were on "
            << absl::FormatTime(absl::FromUnixSeconds(reader->header().unix_seconds()))
            << ". Start the coordinator, then the members again: they belong to the cluster that "
               "was";
  return absl::OkStatus();
}

}  // namespace muster
