// What a gRPC server's calls do: how many, how they end, how long they take, how many are open.
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

// muster_rpc_requests_total{method,code}, muster_rpc_duration_seconds{method} and
// muster_rpc_in_flight{method}; a stream is one call, from its beginning to its end. A call that
// ended without a status, because its caller was gone, counts as CANCELLED.
//
// Thread-safe; a call takes no lock. References into `metrics`, which outlives the server.
class RpcMetrics {
 public:
  // Of every method of these services ("muster.v1.JobService"), which are linked in; other methods
  // are not looked at.
  RpcMetrics(Metrics& metrics, const std::vector<std::string>& services);

  // Goes into the server, and has its calls counted. This outlives the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

 private:
  class Factory;
  class Call;

  static constexpr int kCodes = 17;  // of gRPC
  struct Method {
    Method(std::string name, prometheus::Gauge& in_flight, prometheus::Histogram& duration)
        : name(std::move(name)), in_flight(in_flight), duration(duration) {}

    const std::string name;  // "JobService.CreateJob"
    prometheus::Gauge& in_flight;
    prometheus::Histogram& duration;
    std::array<std::atomic<prometheus::Counter*>, kCodes> requests{};  // null: none ended so, yet
  };

  prometheus::Counter& Requests(Method& method, int code);

  Metrics& metrics_;
  absl::node_hash_map<std::string, Method> methods_;  // by path; not changed any more
};

}  // namespace muster
