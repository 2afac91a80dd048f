// Metrics about chunks that wait for credit in an exchange's queues (SendQueue).
#pragma once

#include <cstdint>

#include "lib/exchange/exchange_metrics.h"

namespace muster {

// Thread-compatible. The destructor takes chunks that still wait out of the metrics.
class CreditWaits {
 public:
  explicit CreditWaits(ExchangeMetrics* metrics) : metrics_(*metrics) {}  // outlives this
  CreditWaits(const CreditWaits&) = delete;
  ~CreditWaits();

  // Records that a chunk of `bytes` bytes is final and waits.
  void Begin(int64_t bytes);
  // Records that it is sent at `now`, and was final at `since` (both from Trace::Now()).
  void End(int64_t bytes, int64_t since, int64_t now);
  // Called after all sends that the credit allows. The remaining chunks wait.
  void Settle();
  int64_t chunks() const { return chunks_; }

 private:
  ExchangeMetrics& metrics_;
  int64_t chunks_ = 0;
  int64_t bytes_ = 0;  // of the waiting chunks
  // begin of the time in which some chunk waits and that is not counted yet; 0: none waits
  int64_t full_since_ = 0;
};

}  // namespace muster
