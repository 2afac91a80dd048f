#include "lib/telemetry/rpc_metrics.h"

#include <chrono>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "google/protobuf/descriptor.h"

namespace muster {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

// One call: created when it begins, destroyed when it is over.
class RpcMetrics::Call : public Interceptor {
 public:
  Call(RpcMetrics* metrics, Method* method) : metrics_(*metrics), method_(*method) {
    method_.in_flight.Increment();
  }

  ~Call() override {
    method_.in_flight.Decrement();
    method_.duration.Observe(std::chrono::duration<double>(Clock::now() - begin_).count());
    metrics_.Requests(method_, code_).Increment();
  }

  void Intercept(InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = static_cast<int>(batch->GetSendStatus().error_code());
    }
    batch->Proceed();
  }

 private:
  using Clock = std::chrono::steady_clock;

  RpcMetrics& metrics_;
  Method& method_;
  const Clock::time_point begin_ = Clock::now();
  int code_ = grpc::StatusCode::CANCELLED;
};

class RpcMetrics::Factory : public ServerInterceptorFactoryInterface {
 public:
  explicit Factory(RpcMetrics* metrics) : metrics_(metrics) {}

  Interceptor* CreateServerInterceptor(ServerRpcInfo* call) override {
    const auto method = metrics_->methods_.find(call->method());
    return method == metrics_->methods_.end() ? nullptr : new Call(metrics_, &method->second);
  }

 private:
  RpcMetrics* const metrics_;
};

RpcMetrics::RpcMetrics(Metrics& metrics, const std::vector<std::string>& services)
    : metrics_(metrics) {
  for (const std::string& name : services) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    CHECK(service != nullptr) << name << " is not linked in";
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string method = absl::StrCat(service->name(), ".", service->method(i)->name());
      const MetricLabels labels = {{"method", method}};
      const auto added = methods_.emplace(
          std::piecewise_construct,
          std::forward_as_tuple(absl::StrCat("/", name, "/", service->method(i)->name())),
          std::forward_as_tuple(
              method,
              metrics.Gauge("muster_rpc_in_flight", "Calls and streams that are open.", labels),
              metrics.Histogram("muster_rpc_duration_seconds",
                                "Time from the beginning of a call or stream to its end.",
                                labels)));
      Requests(added.first->second, grpc::StatusCode::OK);
    }
  }
}

// Returns the counter of the calls that ended with `code`. Each counter is looked up once.
prometheus::Counter& RpcMetrics::Requests(Method& method, int code) {
  std::atomic<prometheus::Counter*>& counter =
      method.requests[code >= 0 && code < kCodes ? code : grpc::StatusCode::UNKNOWN];
  if (counter.load(std::memory_order_acquire) == nullptr) {
    counter = &metrics_.Counter(
        "muster_rpc_requests_total", "Calls that have ended, by gRPC's code.",
        {{"method", method.name},
         {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
  }
  return *counter;
}

std::unique_ptr<ServerInterceptorFactoryInterface> RpcMetrics::Interceptors() {
  return std::make_unique<Factory>(this);
}

}  // namespace muster
