// Metrics of a gRPC server's calls: how many, their status, their duration, and how many are open.
#pragma once

#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/server_interceptor.h"
#include "lib/telemetry/metrics.h"

namespace muster {

// Exports muster_rpc_requests_total{method,code}, muster_rpc_duration_seconds{method} and
// muster_rpc_in_flight{method}. A stream counts as one call. A call that ended without a status,
// because its caller was gone, counts as CANCELLED.
//
// Thread-safe; counting takes no lock. Keeps references into `metrics`, which must outlive the
// server.
class RpcMetrics {
 public:
  // Counts calls of every method of these services ("muster.v1.JobService"), which must be linked
  // in. Ignores other methods.
  RpcMetrics(Metrics& metrics, const std::vector<std::string>& services);

  // Returns a factory for the server, which then counts its calls. This object must outlive the
  // server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

 private:
  class Factory;
  class Call;

  static constexpr int kCodes = 17;  // number of gRPC's status codes
  struct Method {
    Method(std::string name, prometheus::Gauge& in_flight, prometheus::Histogram& duration)
        : name(std::move(name)), in_flight(in_flight), duration(duration) {}

    const std::string name;  // "JobService.CreateJob"
    prometheus::Gauge& in_flight;
    prometheus::Histogram& duration;
    std::array<std::atomic<prometheus::Counter*>, kCodes>
        requests{};  // null: no call has ended with this code
  };

  prometheus::Counter& Requests(Method& method, int code);

  Metrics& metrics_;
  absl::node_hash_map<std::string, Method> methods_;  // by path; constant after construction
};

}  // namespace muster
