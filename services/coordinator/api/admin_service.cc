#include "services/coordinator/api/admin_service.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lib/limits/limits.h"
#include "lib/security/sha256.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "services/coordinator/store/store_backup.h"

namespace muster {

grpc::Status AdminService::Backup(grpc::ServerContext* context, const v1::BackupRequest*,
                                  grpc::ServerWriter<v1::BackupResponse>* writer) {
  const auto caller = gate_.access->Check(*context, "Backup", Permission::kAdmin);
  if (!caller.ok()) return ToGrpc(caller.status());
  const absl::Status made = Send(*context, *writer);
  gate_.access->Audit(*caller, "Backup", "store", made);
  return ToGrpc(made);
}

absl::Status AdminService::Send(grpc::ServerContext& context,
                                grpc::ServerWriter<v1::BackupResponse>& writer) {
  const auto ticket = gate_.admission->Enter(CallKind::kDownload, context.peer());
  if (!ticket.ok()) return ticket.status();
  if (backing_up_.exchange(true)) {
    return WithReason(absl::AbortedError("another backup is being made: try again later"),
                      "BACKUP_RUNS");
  }
  const absl::Cleanup over = [this] { backing_up_ = false; };
  Sha256 hash;
  v1::BackupResponse piece;
  const auto send = [&]() -> absl::Status {
    // A client that does not read would keep the store from clearing its log.
    CallWatch::Guard guard = gate_.Watch(&context, gate_.watch->stall_max());
    const bool sent = writer.Write(piece);
    piece.Clear();
    return sent ? absl::OkStatus() : absl::CancelledError("the caller has gone, or does not read");
  };
  StoreBackupWriter backup([&](absl::string_view bytes) -> absl::Status {
    hash.Add(bytes);
    while (!bytes.empty()) {
      const size_t room = limits::kReadChunkBytesMax - piece.data().size();
      const absl::string_view next = bytes.substr(0, room);
      piece.mutable_data()->append(next.data(), next.size());
      bytes.remove_prefix(next.size());
      if (std::ssize(piece.data()) == limits::kReadChunkBytesMax) RETURN_IF_ERROR(send());
    }
    return absl::OkStatus();
  });
  absl::Status made = store_->Export([&](const v1::BackupRecord& record) {
    if (!record.has_header()) return backup.Add(record);
    v1::BackupRecord header = record;
    header.mutable_header()->set_unix_seconds(absl::ToUnixSeconds(absl::Now()));
    header.mutable_header()->set_program(program_);
    return backup.Add(header);
  });
  if (made.ok()) made = backup.Finish();
  if (!made.ok()) return made;
  piece.set_sha256(hash.Finish());
  return send();
}

}  // namespace muster
