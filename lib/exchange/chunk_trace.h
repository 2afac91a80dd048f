// Traces chunks at a worker, for every kind of exchange.
#pragma once

#include <cstdint>

#include "lib/plan/numbers.h"
#include "lib/telemetry/trace.h"

namespace muster {

// Records a chunk at a step from its final gradient to its new values. Transfers to different peers
// overlap. Does nothing without a trace or while it is off. Thread-safe. The trace must outlive
// this object.
class ChunkTrace {
 public:
  ChunkTrace(Trace* trace, int chunks) : trace_(trace), chunks_(chunks) {
    if (trace_ != nullptr) trace_->NameTrack(kTrack, "exchange");
  }

  void Begin(ChunkId chunk, int64_t step, ShardIndex shard) const {
    if (!on()) return;
    trace_->Begin(kTrack, "chunk", IdOf(chunk, step),
                  {{{"chunk", ToInt(chunk)}, {"step", step}, {"shard", ToInt(shard)}}});
  }
  // `credit` is the number of bytes that may still be sent before earlier ones have arrived.
  void Queued(ChunkId chunk, int64_t step, int64_t urgency, int64_t credit) const {
    Mark("queued", chunk, step, {{{"urgency", urgency}, {"credit", credit}, {"step", step}}});
  }
  void Sent(ChunkId chunk, int64_t step, int64_t bytes, int64_t credit) const {
    Mark("sent", chunk, step, {{{"bytes", bytes}, {"credit", credit}, {"step", step}}});
  }
  void End(ChunkId chunk, int64_t step) const {
    if (on()) trace_->End(kTrack, "chunk", IdOf(chunk, step), {{{"step", step}}});
  }

 private:
  static constexpr int kTrack = 100;  // above the tracks of devices

  bool on() const { return trace_ != nullptr && trace_->on(); }
  int64_t IdOf(ChunkId chunk, int64_t step) const { return step * chunks_ + ToInt(chunk); }
  void Mark(const char* what, ChunkId chunk, int64_t step, const TraceArguments& arguments) const {
    if (on()) trace_->Mark(kTrack, "chunk", what, IdOf(chunk, step), arguments);
  }

  Trace* const trace_;
  const int chunks_;
};

}  // namespace muster
