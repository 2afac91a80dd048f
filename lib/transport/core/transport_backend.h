// The common base of the transports that use one kind of link.
#pragma once

#include <glog/logging.h>

#include "absl/time/time.h"
#include "lib/transport/core/event_loop.h"
#include "lib/transport/core/transport.h"

namespace muster {

// A transport backend. It is alone on its thread, or one of several behind a RoutingTransport that
// share one EventLoop.
class TransportBackend : public Transport, public EventLoop::Sleeper {
 public:
  int Progress() final {
    loop_->LookIfDue(events_);
    return events_ = Advance();
  }
  void Wait(absl::Duration timeout) final { loop_->Wait(*this, timeout); }
  void Wake() final { loop_->Wake(); }

  // Progress() without its look at the descriptors, which the caller has done.
  virtual int Advance() = 0;

 protected:
  explicit TransportBackend(EventLoop* loop) : loop_(loop) { CHECK(loop != nullptr); }
  EventLoop& loop() const { return *loop_; }

 private:
  EventLoop* const loop_;  // outlives the backend
  int events_ = 0;         // events handled by the last Advance()
};

}  // namespace muster
