// Measures the cost of counting: the figures of docs/benchmarks.md, "Metrics".
#include <benchmark/benchmark.h>

#include <chrono>

#include "lib/telemetry/metrics.h"
#include "lib/telemetry/thread_counts.h"

namespace muster {
namespace {

// A ps's work for one push and its answer: six counts, and the clock for one chunk per step.
void BM_PushAtAPs(benchmark::State& state) {
  ThreadCount counts[6];
  for (auto _ : state) {
    for (ThreadCount& count : counts) count.Add(4096);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_PushAtAPs);

void BM_Clock(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(std::chrono::steady_clock::now());
}
BENCHMARK(BM_Clock);

void BM_ThreadHistogram(benchmark::State& state) {
  ThreadHistogram histogram(Metrics::DurationBuckets(), 1e-9);
  for (auto _ : state) histogram.Observe(1'000'000);
}
BENCHMARK(BM_ThreadHistogram);

// A worker's work for one chunk: bytes sent and received, in total and per link, bytes in flight,
// and the wait for credit.
void BM_ChunkAtAWorker(benchmark::State& state) {
  Metrics metrics;
  prometheus::Counter& sent = metrics.Counter("sent_total", "");
  prometheus::Counter& received = metrics.Counter("received_total", "");
  prometheus::Counter& link_sent = metrics.Counter("link_sent_total", "");
  prometheus::Counter& link_received = metrics.Counter("link_received_total", "");
  prometheus::Gauge& inflight = metrics.Gauge("inflight", "");
  prometheus::Gauge& queued = metrics.Gauge("queued", "");
  prometheus::Histogram& credit = metrics.Histogram("credit_seconds", "");
  for (auto _ : state) {
    sent.Increment(4096);
    link_sent.Increment(4096);
    received.Increment(4096);
    link_received.Increment(4096);
    inflight.Increment(4096);
    inflight.Decrement(4096);
    queued.Set(1);
    credit.Observe(1e-3);
  }
}
BENCHMARK(BM_ChunkAtAWorker);

// A worker's work for one step besides its chunks.
void BM_StepAtAWorker(benchmark::State& state) {
  Metrics metrics;
  prometheus::Counter& steps = metrics.Counter("steps_total", "");
  prometheus::Counter& samples = metrics.Counter("samples_total", "");
  prometheus::Gauge& value = metrics.Gauge("value", "");
  prometheus::Histogram& duration = metrics.Histogram("duration_seconds", "");
  for (auto _ : state) {
    steps.Increment();
    samples.Increment(64);
    for (int i = 0; i < 4; ++i) value.Set(i);         // loss, norm, rate, scale
    for (int i = 0; i < 4; ++i) duration.Observe(i);  // the whole and its phases
  }
}
BENCHMARK(BM_StepAtAWorker);

}  // namespace
}  // namespace muster

BENCHMARK_MAIN();
