#include "services/coordinator/common/answer_watch.h"

#include <glog/logging.h>
#include <grpc/grpc.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "lib/concurrency/steady_wait.h"

namespace muster {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerInterceptorFactoryInterface;
using grpc::experimental::ServerRpcInfo;

constexpr absl::string_view kOurs = "/muster.";
// Not watched: its answer of some megabytes holds no thread, and may take more than a minute on a
// slow link.
constexpr absl::string_view kTraceJob = "/muster.v1.JobService/TraceJob";

// Requires: the watch's lock is not held, because gRPC may run callbacks of other calls on this
// thread.
void Cancel(grpc_call* call) {
  grpc_call_cancel_with_status(call, GRPC_STATUS_RESOURCE_EXHAUSTED, "the answer was not read",
                               nullptr);
  grpc_call_unref(call);
}

}  // namespace

// A blocking call. Destroyed when the call is over and its thread is free.
class AnswerWatch::Call : public Interceptor {
 public:
  Call(AnswerWatch* watch, ServerRpcInfo* info)
      : watch_(*watch), info_(*info), method_(info->method()) {}
  ~Call() override {
    if (entered_) watch_.Leave(*this);
  }

  void Intercept(InterceptorBatchMethods* batch) override {
    if (batch->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS) &&
        !std::exchange(entered_, true)) {
      watch_.Enter(*this);
    }
    batch->Proceed();
  }

  grpc::ServerContextBase& context() const { return *info_.server_context(); }
  const std::string& method() const { return method_; }

  // Guarded by the watch's lock.
  std::optional<std::list<Call*>::iterator> place;  // nullopt: it was cancelled
  absl::Duration since;                             // on SteadyNow()'s clock

 private:
  AnswerWatch& watch_;
  ServerRpcInfo& info_;
  // A copy, because the name of an unknown method is freed before the call.
  const std::string method_;
  bool entered_ = false;
};

class AnswerWatch::Factory : public ServerInterceptorFactoryInterface {
 public:
  explicit Factory(AnswerWatch* watch) : watch_(watch) {}

  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    const absl::string_view method = info->method();
    if (absl::StartsWith(method, kOurs) && method != kTraceJob) {
      return new Call(watch_, info);
    }
    return nullptr;  // such calls hold no thread
  }

 private:
  AnswerWatch* const watch_;
};

AnswerWatch::AnswerWatch(Options options)
    : options_(std::move(options)), repeater_(options_.interval, [this] { CancelLate(); }) {}

AnswerWatch::~AnswerWatch() {
  absl::MutexLock lock(&mu_);
  CHECK(waiting_.empty()) << "a call outlives its watch";
}

std::unique_ptr<ServerInterceptorFactoryInterface> AnswerWatch::Interceptors() {
  return std::make_unique<Factory>(this);
}

void AnswerWatch::Enter(Call& call) {
  // The first use of the metadata creates it and is not thread-safe. So it happens here, before the
  // watch's thread may log the caller's name.
  call.context().client_metadata();
  grpc_call* oldest = nullptr;
  {
    absl::MutexLock lock(&mu_);
    call.since = SteadyNow();
    call.place = waiting_.insert(waiting_.end(), &call);
    if (waiting_.size() > options_.most) oldest = TakeOldest("and too many others wait");
    Tell();
  }
  if (oldest != nullptr) Cancel(oldest);
}

void AnswerWatch::Leave(Call& call) {
  absl::MutexLock lock(&mu_);
  if (call.place) waiting_.erase(*call.place);
  Tell();
}

void AnswerWatch::Tell() {
  if (options_.crowded != nullptr) *options_.crowded = waiting_.size() > options_.most / 2;
}

grpc_call* AnswerWatch::TakeOldest(absl::string_view why) {
  Call& call = *waiting_.front();
  waiting_.pop_front();
  call.place.reset();
  LOG_EVERY_T(WARNING, 1) << options_.name(call.context()) << " has not read the answer of "
                          << call.method() << " for "
                          << absl::FormatDuration(SteadyNow() - call.since) << ", " << why
                          << ": the call is cancelled";
  grpc_call_ref(call.context().c_call());
  return call.context().c_call();
}

void AnswerWatch::CancelLate() {
  std::vector<grpc_call*> late;
  {
    absl::MutexLock lock(&mu_);
    while (!waiting_.empty() && SteadyNow() - waiting_.front()->since > options_.patience) {
      late.push_back(TakeOldest("the limit"));
    }
    Tell();
  }
  for (grpc_call* call : late) Cancel(call);
}

}  // namespace muster
