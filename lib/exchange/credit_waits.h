// What waits for credit in an exchange's queues (SendQueue), as metrics tell it.
#pragma once

#include <cstdint>

#include "lib/exchange/exchange_metrics.h"

namespace muster {

// Thread-compatible. What waits when it ends is not told for ever.
class CreditWaits {
 public:
  explicit CreditWaits(ExchangeMetrics* metrics) : metrics_(*metrics) {}  // outlives this
  CreditWaits(const CreditWaits&) = delete;
  ~CreditWaits();

  // A chunk of so many bytes is final.
  void Begin(int64_t bytes);
  // It is sent at `now`, and was final at `since` (both as Trace::Now()).
  void End(int64_t bytes, int64_t since, int64_t now);
  // All that may be sent was: what is left waits.
  void Settle();
  int64_t chunks() const { return chunks_; }

 private:
  ExchangeMetrics& metrics_;
  int64_t chunks_ = 0;
  int64_t bytes_ = 0;       // of those
  int64_t full_since_ = 0;  // some chunk waits, and the time from here on is not counted; 0: none
};

}  // namespace muster
