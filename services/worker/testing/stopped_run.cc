#include "services/worker/testing/stopped_run.h"

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/worker/runner/progress_log.h"
#include "services/worker/runner/worker_metrics.h"
#include "services/worker/testing/training_run.h"

namespace muster {

void StopAndContinue(FakePs::Options job, int64_t total_steps, int devices, uint32_t seed,
                     const std::function<void(Trainer&, FakePs&)>& stop) {
  SCOPED_TRACE(absl::StrCat(devices, " devices, seed ", seed));
  const Trained undisturbed = Train(job, total_steps, devices);
  InProcessNetwork network;
  FakePs ps(network, job);
  Metrics metrics;
  WorkerMetrics worker_metrics(metrics);
  ProgressLog log, next_log;
  Trainer::Options options{.plan = ps.plan(),
                           .devices = std::vector<std::string>(devices, "cpu"),
                           .transport = [&network] { return network.MakeTransport(); },
                           .log = &log,
                           .metrics = &worker_metrics};
  auto trainer = *Trainer::Create(options);
  ASSERT_TRUE(trainer->Start(total_steps, {}).ok());
  std::mt19937 random(seed);
  const int64_t stop_at = 1 + random() % 5;
  while (trainer->next_step() < stop_at) ASSERT_TRUE(trainer->Step().ok());
  {
    const std::jthread stopper([&] {
      for (uint32_t spins = random() % 400'000; spins > 0; --spins) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
      }
      stop(*trainer, ps);
    });
    while (!trainer->done() && trainer->Step().ok()) {
    }
  }
  job.generation = 2;
  if (trainer->Drain().ok()) {
    job.first_step = trainer->next_step();
    for (int p = 0; p < job.graph.parameters_size(); ++p) job.values.push_back(ps.parameter(p));
  }
  trainer->Halt(absl::CancelledError("halted"));
  FakePs next(network, job);
  options.plan = next.plan();
  options.log = &next_log;
  trainer = *Trainer::Continue(std::move(trainer), options);
  ASSERT_TRUE(trainer->Start(total_steps, {}).ok());
  while (!trainer->done()) {
    const absl::Status status = trainer->Step();
    ASSERT_TRUE(status.ok()) << status;
  }
  for (int p = 0; p < job.graph.parameters_size(); ++p) {
    EXPECT_EQ(next.parameter(p), undisturbed.parameters[p]) << p << ", from " << job.first_step;
  }
}

}  // namespace muster
