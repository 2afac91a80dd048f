#include "services/coordinator/store/restore.h"

#include <glog/logging.h>

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "google/protobuf/timestamp.pb.h"
#include "lib/status/status.h"
#include "proto/muster/v1/access.pb.h"
#include "services/coordinator/common/proto_time.h"
#include "services/coordinator/store/store_backup.h"

namespace muster {
namespace {

// Returns the revocation time of each token that was revoked in the old store. Returns nothing if
// the old store cannot be read; it is replaced all the same.
absl::flat_hash_map<std::string, google::protobuf::Timestamp> Revocations(
    const StoreChoice& choice) {
  absl::flat_hash_map<std::string, google::protobuf::Timestamp> revoked;
  const auto tokens = choice.Tokens();
  LOG_IF(WARNING, !tokens.ok()) << "cannot read which tokens were revoked in the replaced store: "
                                << tokens.status().message() << " [" << ReasonOf(tokens.status())
                                << "]";
  if (!tokens.ok()) return revoked;
  for (const Store::Token& token : *tokens) {
    if (token.record.has_revoke_time()) revoked[token.record.id()] = token.record.revoke_time();
  }
  return revoked;
}

}  // namespace

absl::Status RestoreStoreBackup(const std::string& backup, const StoreChoice& choice,
                                Occupied occupied) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StoreBackupReader> reader,
                   StoreBackupReader::Open(backup));
  absl::flat_hash_map<std::string, google::protobuf::Timestamp> revoked;
  if (occupied == Occupied::kGiveUp) revoked = Revocations(choice);
  int64_t jobs = 0, tokens = 0, valid = 0, stay_revoked = 0;
  const auto take_token = [&](v1::StoredToken& token) {
    ++tokens;
    v1::AccessToken access;
    if (!access.ParseFromString(token.record()) || access.has_revoke_time()) return;
    if (const auto known = revoked.find(access.id()); known != revoked.end()) {
      *access.mutable_revoke_time() = known->second;
      token.set_record(access.SerializeAsString());
      ++stay_revoked;
    } else if (FromProto(access.expire_time()) > absl::Now()) {
      ++valid;
    }
  };
  const auto next = [&] {
    auto record = reader->Next();
    if (record.ok() && record->has_value()) {
      jobs += (*record)->has_job();
      if ((*record)->has_token()) take_token(*(*record)->mutable_token());
    }
    return record;
  };
  RETURN_IF_ERROR(choice.Restore(occupied == Occupied::kGiveUp,
                                 [&](Store& store) { return store.Import(next); }));
  LOG(INFO) << "restored " << jobs << " jobs and " << tokens << " tokens, as they were on "
            << absl::FormatTime(absl::FromUnixSeconds(reader->header().unix_seconds()))
            << ". Start the coordinator, then restart the members: they still belong to the old "
               "cluster";
  LOG_IF(INFO, stay_revoked > 0) << stay_revoked << " tokens stay revoked, as they were in the "
                                 << "replaced store";
  LOG_IF(WARNING, valid > 0)
      << valid
      << " tokens are valid, as at the time of the backup. Tokens revoked since then are valid "
      << "again: muster token list shows all, muster token revoke revokes one";
  return absl::OkStatus();
}

}  // namespace muster
