#include "services/worker/testing/training_run.h"

#include <thread>

#include "gtest/gtest.h"
#include "lib/telemetry/metrics.h"
#include "lib/transport/testing/inprocess_transport.h"
#include "services/worker/runner/progress_log.h"
#include "services/worker/runner/worker_metrics.h"
#include "services/worker/training/trainer.h"

namespace muster {

Trained TrainOn(const FakePs::Options& options, int64_t total_steps,
                const std::vector<std::string>& devices, const std::string& index_folder) {
  InProcessNetwork network;
  FakePs ps(network, options);
  Trained trained;
  trained.reports.resize(options.workers);
  trained.flops.resize(options.workers);
  auto work = [&](int rank) {
    Metrics metrics;
    WorkerMetrics worker_metrics(metrics);
    ProgressLog log;
    auto trainer = Trainer::Create({.plan = ps.plan(),
                                    .rank = Rank(rank),
                                    .devices = devices,
                                    .transport = [&network] { return network.MakeTransport(); },
                                    .index_folder = index_folder,
                                    .log = &log,
                                    .metrics = &worker_metrics});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const absl::Status started = (*trainer)->Start(total_steps, {});
    ASSERT_TRUE(started.ok()) << started;
    while (!(*trainer)->done()) {
      const absl::Status status = (*trainer)->Step();
      ASSERT_TRUE(status.ok()) << status;
    }
    EXPECT_EQ((*trainer)->next_step(), total_steps);
    log.AddTo(trained.reports[rank]);
    trained.flops[rank] = worker_metrics.flops.Value();
  };
  {
    std::vector<std::jthread> workers;
    for (int rank = 0; rank < options.workers; ++rank) workers.emplace_back(work, rank);
  }
  for (int p = 0; p < options.graph.parameters_size(); ++p) {
    trained.parameters.push_back(ps.parameter(p));
  }
  return trained;
}

Trained Train(const FakePs::Options& options, int64_t total_steps, int devices,
              const std::string& index_folder) {
  return TrainOn(options, total_steps, std::vector<std::string>(devices, "cpu"), index_folder);
}

}  // namespace muster
