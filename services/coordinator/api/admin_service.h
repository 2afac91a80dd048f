// AdminService over the store.
#pragma once

#include <atomic>
#include <string>

#include "proto/muster/v1/admin.grpc.pb.h"
#include "services/coordinator/api/call_gate.h"
#include "services/coordinator/store/store.h"

namespace muster {

class AdminService final : public v1::AdminService::Service {
 public:
  // `store` must outlive the service. `program` is the version of Muster in the backups.
  AdminService(const Store* store, const CallGate& gate, std::string program)
      : store_(store), gate_(gate), program_(std::move(program)) {}

  grpc::Status Backup(grpc::ServerContext* context, const v1::BackupRequest* request,
                      grpc::ServerWriter<v1::BackupResponse>* writer) override;

 private:
  absl::Status Send(grpc::ServerContext& context, grpc::ServerWriter<v1::BackupResponse>& writer);

  const Store* const store_;
  const CallGate gate_;
  const std::string program_;
  // True while a backup is made. Only one is made at a time, because each reads the whole store.
  std::atomic<bool> backing_up_ = false;
};

}  // namespace muster
