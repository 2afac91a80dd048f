// Frees threads from callers that do not read their answers.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"
#include "lib/concurrency/repeater.h"
#include "lib/limits/limits.h"

namespace muster {

// A blocking call keeps its thread until gRPC has sent the answer, which takes as long as the
// caller does not read. No method runs any more that could check a deadline. So this watch cancels
// each call that waits longer than `patience`, and the oldest call while more than `most` wait.
//
// Must outlive the server. Thread-safe.
class AnswerWatch {
 public:
  struct Options {
    // Returns the caller's name for the log.
    std::function<std::string(const grpc::ServerContextBase&)> name;
    absl::Duration patience = limits::kStreamStallMax;
    size_t most = limits::kServerThreadsMax / 2;
    absl::Duration interval = absl::Seconds(1);
    // Set to true while more than half of `most` wait, so that the server can refuse new calls. A
    // fast caller could add calls before the cancelled ones have freed their threads. Must outlive
    // the watch; may be null.
    std::atomic<bool>* crowded = nullptr;
  };
  explicit AnswerWatch(Options options);
  ~AnswerWatch();

  // Creates the interceptors for the server.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

 private:
  class Call;
  class Factory;

  void Enter(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the oldest call. The caller must cancel it after it has released the lock. The Call
  // object may be gone by then.
  grpc_call* TakeOldest(absl::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelLate() ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  absl::Mutex mu_;
  std::list<Call*> waiting_ ABSL_GUARDED_BY(mu_);  // the oldest first
  Repeater repeater_;                              // last, because it uses the other members
};

}  // namespace muster
