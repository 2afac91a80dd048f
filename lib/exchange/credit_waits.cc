#include "lib/exchange/credit_waits.h"

#include "lib/telemetry/trace.h"

namespace muster {

CreditWaits::~CreditWaits() {
  metrics_.queued_bytes.Decrement(static_cast<double>(bytes_));
  metrics_.queued_chunks.Set(0);
}

void CreditWaits::Begin(int64_t bytes) {
  ++chunks_;
  bytes_ += bytes;
  metrics_.queued_bytes.Increment(static_cast<double>(bytes));
}

// Counts the time of a full queue at every send, because the clock is read for sends anyway.
void CreditWaits::End(int64_t bytes, int64_t since, int64_t now) {
  --chunks_;
  bytes_ -= bytes;
  metrics_.queued_bytes.Decrement(static_cast<double>(bytes));
  metrics_.credit_duration.Observe(static_cast<double>(now - since) * 1e-9);
  if (full_since_ == 0) return;
  metrics_.queue_full.Increment(static_cast<double>(now - full_since_) * 1e-9);
  full_since_ = now;
}

void CreditWaits::Settle() {
  metrics_.queued_chunks.Set(static_cast<double>(chunks_));
  if (chunks_ == 0) {
    full_since_ = 0;
  } else if (full_since_ == 0) {
    full_since_ = Trace::Now();
  }
}

}  // namespace muster
