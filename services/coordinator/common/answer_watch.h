// Takes threads back from callers who do not read their answers.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"
#include "lib/limits/limits.h"

namespace muster {

// A call that blocks keeps its thread until its answer is on its way, which it is as soon as its
// caller has room for it: never, if that is what he wants, and no method is there any more that
// could look at its clock. So whoever waits longer than `patience` is cancelled; while more than
// `most` wait, who has waited longest.
//
// Thread-safe; outlives the server.
class AnswerWatch {
 public:
  struct Options {
    // Who calls, for the log.
    std::function<std::string(const grpc::ServerContextBase&)> name;
    absl::Duration patience = limits::kStreamStallMax;
    size_t most = limits::kServerThreadsMax / 2;
    absl::Duration interval = absl::Seconds(1);
    // Set while more than half of `most` wait: whoever calls too fast could bring others before
    // those that are cancelled have left their threads. Outlives the watch; null: nobody asks.
    std::atomic<bool>* crowded = nullptr;
  };
  explicit AnswerWatch(Options options);
  ~AnswerWatch();

  // Goes into the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

 private:
  class Call;
  class Factory;

  void Enter(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  // The caller releases it, with the lock or without; whose call it is may be gone by then.
  grpc_call* TakeOldest(absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  absl::Mutex mu_;
  std::list<Call*> waiting_ ABSL_GUARDED_BY(mu_);  // the oldest first
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace muster
