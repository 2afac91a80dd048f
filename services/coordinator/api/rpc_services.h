// All gRPC services of the coordinator on one server.
#pragma once

#include <atomic>
#include <memory>

#include "grpcpp/server.h"
#include "lib/fleet/channel.h"
#include "lib/telemetry/metrics.h"
#include "lib/telemetry/rpc_metrics.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/api/access_service.h"
#include "services/coordinator/api/admin_service.h"
#include "services/coordinator/api/call_gate.h"
#include "services/coordinator/api/checkpoint_service.h"
#include "services/coordinator/api/fleet_service.h"
#include "services/coordinator/api/job_service.h"
#include "services/coordinator/api/member_service.h"
#include "services/coordinator/api/reflection_service.h"
#include "services/coordinator/api/token_table.h"
#include "services/coordinator/common/admission.h"
#include "services/coordinator/common/answer_watch.h"
#include "services/coordinator/common/call_watch.h"
#include "services/coordinator/common/refusing_service.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// The server has no port: a GrpcListener gives it connections.
class RpcServices {
 public:
  struct Options {
    Coordinator* coordinator = nullptr;
    TokenTable* tokens = nullptr;
    const Access* access = nullptr;
    Metrics* metrics = nullptr;
    std::atomic<bool>* crowded = nullptr;  // set while many answers wait for callers to read them
    ConnectionAge age;
    bool reflection = true;
  };
  // Starts serving. The pointees outlive this object.
  explicit RpcServices(const Options& options);

  grpc::Server& server() { return *server_; }

 private:
  Admission admission_;
  CallWatch watch_;
  const CallGate gate_;
  JobService jobs_;
  FleetService fleet_;
  CheckpointService checkpoints_;
  MemberService members_;
  AccessService people_;
  AdminService administration_;
  ReflectionService reflection_;
  RefusingService unknown_methods_;
  AnswerWatch answers_;
  RpcMetrics calls_;
  std::unique_ptr<grpc::Server> server_;  // last: its calls use all of the above
};

}  // namespace muster
