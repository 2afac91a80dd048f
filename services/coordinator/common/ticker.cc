#include "services/coordinator/common/ticker.h"

#include <algorithm>
#include <utility>

#include "lib/concurrency/steady_wait.h"

namespace muster {

void Ticker::Start(absl::Duration interval, std::function<void()> tick,
                   std::function<void()> dispatch) {
  thread_ = std::thread([this, interval, tick = std::move(tick), dispatch = std::move(dispatch)] {
    Run(interval, tick, dispatch);
  });
}

void Ticker::DispatchSoon() {
  absl::MutexLock lock(&mu_);
  dispatches_ = true;
}

void Ticker::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

// A tick also dispatches, so it fulfills earlier requests.
void Ticker::Run(absl::Duration interval, const std::function<void()>& tick,
                 const std::function<void()>& dispatch) {
  absl::Duration next_tick = SteadyNow() + interval;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      AwaitFor(&mu_, absl::Condition(this, &Ticker::IsAsked), next_tick - SteadyNow());
      if (stopping_) return;
      dispatches_ = false;
    }
    absl::Duration gap = kDispatchGap;
    if (const absl::Duration begin = SteadyNow(); begin >= next_tick) {
      tick();
      next_tick = SteadyNow() + interval;
    } else {
      dispatch();
      // It holds the lock that submissions need. Where it takes long, it is made less often.
      gap = std::max(gap, kGapPerWork * (SteadyNow() - begin));
    }
    absl::MutexLock lock(&mu_);
    AwaitFor(&mu_, absl::Condition(&stopping_), std::min(gap, next_tick - SteadyNow()));
  }
}

}  // namespace muster
