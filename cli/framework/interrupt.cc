#include "cli/framework/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "cli/framework/exit_code.h"
#include "lib/concurrency/steady_wait.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kOneInterrupt = absl::Milliseconds(250);

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every later thread
  thread_ = std::thread([this] { Run(); });
}

Interrupt::~Interrupt() {
  // The signal only wakes the thread from sigwait(). It sees `stopping_` and ends.
  stopping_ = true;
  pthread_kill(thread_.native_handle(), SIGTERM);
  thread_.join();
}

void Interrupt::Run() {
  const sigset_t signals = EndingSignals();
  for (;;) {
    int signal = 0;
    sigwait(&signals, &signal);
    if (stopping_) return;
    absl::MutexLock lock(&mu_);
    // A second signal so soon is the first one delivered twice; see the header.
    if (signal_ != 0 && SteadyNow() - first_at_ < kOneInterrupt) continue;
    if (callbacks_.empty() || signal_ != 0) _exit(kExitSignalBase + signal);
    signal_ = signal;
    first_at_ = SteadyNow();
    for (auto& [id, on_signal] : callbacks_) on_signal();
  }
}

bool Interrupt::WaitFor(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  auto signalled = [this] { return signal_ != 0; };
  return AwaitFor(&mu_, absl::Condition(&signalled), timeout);
}

Interrupt::Registration::Registration(Interrupt& interrupt, std::function<void()> on_signal)
    : interrupt_(interrupt) {
  absl::MutexLock lock(&interrupt.mu_);
  id_ = interrupt.next_id_++;
  if (interrupt.signal_ != 0) on_signal();
  interrupt.callbacks_[id_] = std::move(on_signal);
}

Interrupt::Registration::~Registration() {
  absl::MutexLock lock(&interrupt_.mu_);
  interrupt_.callbacks_.erase(id_);
}

}  // namespace muster::cli
