// JobService over the core: converts protos and statuses.
#pragma once

#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/api/call_gate.h"
#include "services/coordinator/coordinator.h"

namespace muster {

// Calls block gRPC's threads for the store, and uploads for the disk. Only watches and traces,
// which stay open for long, are asynchronous. `coordinator` must outlive the service and its
// server.
class JobService final
    : public v1::JobService::WithCallbackMethod_WatchJob<
          v1::JobService::WithCallbackMethod_WatchJobs<
              v1::JobService::WithCallbackMethod_TraceJob<v1::JobService::Service>>> {
 public:
  // `coordinator` must outlive the service.
  JobService(Coordinator* coordinator, const CallGate& gate)
      : coordinator_(coordinator), gate_(gate) {}

  grpc::Status CreateJob(grpc::ServerContext* context, const v1::CreateJobRequest* request,
                         v1::Job* response) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::Job* response) override;
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::Job* response) override;
  grpc::Status DeleteJob(grpc::ServerContext* context, const v1::DeleteJobRequest* request,
                         google::protobuf::Empty* response) override;
  grpc::Status SuspendJob(grpc::ServerContext* context, const v1::SuspendJobRequest* request,
                          v1::Job* response) override;
  grpc::Status ResumeJob(grpc::ServerContext* context, const v1::ResumeJobRequest* request,
                         v1::Job* response) override;
  grpc::Status UpdateJob(grpc::ServerContext* context, const v1::UpdateJobRequest* request,
                         v1::Job* response) override;
  grpc::Status ListEvents(grpc::ServerContext* context, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override;
  grpc::Status ReadJobMetrics(grpc::ServerContext* context,
                              const v1::ReadJobMetricsRequest* request,
                              v1::ReadJobMetricsResponse* response) override;
  grpc::Status ReadJobTiming(grpc::ServerContext* context, const v1::ReadJobTimingRequest* request,
                             v1::ReadJobTimingResponse* response) override;
  grpc::Status ReadJobLinks(grpc::ServerContext* context, const v1::ReadJobLinksRequest* request,
                            v1::ReadJobLinksResponse* response) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::ServerInfo* response) override;
  grpc::Status UploadModel(grpc::ServerContext* context,
                           grpc::ServerReader<v1::UploadModelRequest>* reader,
                           v1::UploadModelResponse* response) override;
  grpc::ServerUnaryReactor* TraceJob(grpc::CallbackServerContext* context,
                                     const v1::TraceJobRequest* request,
                                     v1::TraceJobResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchJobsResponse>* WatchJobs(
      grpc::CallbackServerContext* context, const v1::WatchJobsRequest* request) override;
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override;

 private:
  Coordinator* const coordinator_;
  const CallGate gate_;
};

}  // namespace muster
