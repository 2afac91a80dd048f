#include "tests/sim/sync_simulation.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/plan/chunk_placement.h"
#include "tests/sim/measurements.h"
#include "tests/sim/model_layers.h"

namespace muster::sync_simulation_test {
namespace {

using ::testing::DoubleNear;
using ::testing::Le;

constexpr double kGigabit = 1e9 / 8;
constexpr double kBytes = 1e8;

// A cluster in which only the bytes on the wire cost time.
SimulatedCluster Cluster(int workers, int separate, bool colocated) {
  SimulatedCluster cluster{.workers = workers,
                           .network = {.bytes_per_second = kGigabit},
                           .sum_bytes_per_second = 1e15,
                           .apply_bytes_per_second = 1e15};
  for (int i = 0; i < separate; ++i) cluster.shard_hosts.push_back(workers + i);
  for (int i = 0; colocated && i < workers; ++i) cluster.shard_hosts.push_back(i);
  return cluster;
}

std::vector<double> SharesOf(const SimulatedCluster& cluster) {
  std::vector<std::string> workers, shards;
  for (int i = 0; i < cluster.workers; ++i) workers.push_back("host-" + std::to_string(i));
  for (const int host : cluster.shard_hosts) shards.push_back("host-" + std::to_string(host));
  return ShardShares(workers, shards);
}

ModelLayers EqualLayers(int layers, double bytes) {
  ModelLayers model{.bytes = bytes};
  model.layers.assign(layers, {.work = 1.0 / layers, .bytes = bytes / layers});
  return model;
}

SimulatedStep SimulateBytes(const SimulatedCluster& cluster, double compute_seconds = 0,
                            double chunk_bytes = kBytes / 400) {
  return Simulate(
      CutForShards(EqualLayers(25, kBytes), compute_seconds, SharesOf(cluster), chunk_bytes),
      cluster);
}

TEST(NetworkModelTest, UrgentMessageOvertakesWaitingOnesButNotTheOneUnderWay) {
  NetworkModel network(2, {.bytes_per_second = 10, .latency_seconds = 0.5},
                       [](const NetworkBurst& burst, int index) -> NetworkMessage {
                         return {.to = 1, .bytes = 10, .chunk = burst.subject + index};
                       });
  network.Send(0, {.from = 0, .priority = 5, .messages = 2, .subject = 1});
  network.Send(0, {.from = 0, .priority = 1, .subject = 3});

  std::vector<std::pair<int, double>> delivered;
  for (NetworkMessage message; network.next_time() < 100;) {
    const double now = network.next_time();
    if (network.Advance(message)) delivered.emplace_back(message.chunk, now);
  }
  EXPECT_THAT(delivered, testing::ElementsAre(testing::Pair(1, 1.5), testing::Pair(3, 2.5),
                                              testing::Pair(2, 3.5)));
}

TEST(NetworkModelTest, ReceivingCardTakesOneMessageAtATime) {
  NetworkModel network(
      3, {.bytes_per_second = 10},
      [](const NetworkBurst&, int index) -> NetworkMessage { return {.to = index, .bytes = 10}; });
  // Every message to another host is sent: two from host 0, two from host 1.
  network.Send(0, {.from = 0, .messages = 3});
  network.Send(0, {.from = 1, .messages = 3});

  std::vector<std::pair<int, double>> delivered;
  for (NetworkMessage message; network.next_time() < 100;) {
    const double now = network.next_time();
    if (network.Advance(message)) delivered.emplace_back(message.to, now);
  }
  // The second messages of host 0 and host 1 reach host 2 at the same time, so one waits.
  EXPECT_THAT(delivered, testing::UnorderedElementsAre(testing::Pair(1, 1), testing::Pair(0, 1),
                                                       testing::Pair(2, 2), testing::Pair(2, 3)));
}

// A step takes the bound plus a few chunks: the first chunk's way out and the last one's way back.
TEST(SyncSimulationTest, SeparateShardsReachTheBoundOfTheBusiestCard) {
  for (const int n : {1, 2, 4, 8}) {
    for (const int k : {1, 2, 4, 8}) {
      SCOPED_TRACE(testing::Message() << n << " workers, " << k << " ps");
      const double optimum = SeparateOptimum(n, k, kBytes, kGigabit);
      const double seconds = SimulateBytes(Cluster(n, k, /*colocated=*/false)).seconds;
      EXPECT_GE(seconds, optimum * 0.999);
      EXPECT_LE(seconds, optimum * 1.06);
    }
  }
}

TEST(SyncSimulationTest, ColocatedAndSeparateShardsReachTheBoundOfTheorem1) {
  for (const int n : {2, 4, 8}) {
    for (const int k : {0, 1, 2, 4}) {
      if (k >= n) continue;
      SCOPED_TRACE(testing::Message() << n << " workers, " << k << " ps");
      const double optimum = ColocatedOptimum(n, k, kBytes, kGigabit);
      const SimulatedStep step = SimulateBytes(Cluster(n, k, /*colocated=*/true));
      EXPECT_THAT(step.bytes_per_nic, DoubleNear(optimum * kGigabit, 0.01 * kBytes));
      EXPECT_GE(step.seconds, optimum * 0.999);
      EXPECT_LE(step.seconds, optimum * 1.1);
    }
  }
}

TEST(SyncSimulationTest, RingReachesItsBound) {
  for (const int n : {2, 4, 8}) {
    SCOPED_TRACE(n);
    SimulatedCluster cluster = Cluster(n, /*separate=*/0, /*colocated=*/true);
    cluster.allreduce = true;
    const double optimum = RingOptimum(n, kBytes, kGigabit);
    const SimulatedStep step = SimulateBytes(cluster);
    EXPECT_THAT(step.bytes_per_nic, DoubleNear(optimum * kGigabit, 0.01 * kBytes));
    EXPECT_GE(step.seconds, optimum * 0.999);
    EXPECT_LE(step.seconds, optimum * 1.1);
  }
}

TEST(SyncSimulationTest, LongComputationHidesMostOfTheCommunication) {
  const double seconds = SimulateBytes(Cluster(1, 1, false), /*compute_seconds=*/2).seconds;

  EXPECT_GE(seconds, 2);
  EXPECT_LE(seconds, 2.1);  // the front layers' way there and back
}

TEST(SyncSimulationTest, OverlapAndPriorityGainWhatArithmeticPredicts) {
  const double both = kBytes / kGigabit;  // communication takes as long as computation
  SimulatedCluster cluster = Cluster(1, 1, false);
  const double overlapped = SimulateBytes(cluster, both).seconds;
  cluster.priority = false;
  const double without_priority = SimulateBytes(cluster, both).seconds;
  cluster.priority = true;
  cluster.overlap = false;
  const double without_overlap = SimulateBytes(cluster, both).seconds;

  EXPECT_THAT(overlapped, Le(1.1 * both));
  // First come, first served: the front layer's gradient leaves last.
  EXPECT_THAT(without_priority, DoubleNear(1.36 * both, 0.06 * both));
  EXPECT_THAT(without_overlap, DoubleNear(1.36 * both, 0.06 * both));
}

TEST(SyncSimulationTest, SlowSumOfAShardIsTheBound) {
  SimulatedCluster cluster = Cluster(4, 1, false);
  cluster.sum_bytes_per_second = kGigabit / 2;

  EXPECT_THAT(SimulateBytes(cluster).seconds, DoubleNear(4 * kBytes / (kGigabit / 2), 0.1));
}

// ---------------------------------------------------------------- against measurements

TEST(SyncSimulationTest, ReproducesTheShapedNetworkWithinTenPercent) {
  const auto measured = ReadMeasurements("tests/sim/measured.txt");
  ASSERT_TRUE(measured.ok()) << measured.status();
  ASSERT_GE(measured->steps.size(), 10);
  for (const MeasuredStep& step : measured->steps) {
    SCOPED_TRACE(testing::Message()
                 << step.mode << ", " << step.bits_per_second / 1e6 << " Mbit/s, " << step.workers
                 << " workers, " << step.separate << " ps");
    SimulatedCluster cluster =
        Cluster(step.workers, step.separate, /*colocated=*/step.mode != "separate");
    cluster.allreduce = step.mode == "allreduce";
    cluster.network = {.bytes_per_second = step.bits_per_second / 8 * measured->payload_share,
                       .latency_seconds = measured->latency_seconds};
    cluster.sum_bytes_per_second = measured->sum_bytes_per_second;
    cluster.apply_bytes_per_second = measured->apply_bytes_per_second;
    const double compute =
        measured->compute_seconds * std::max(1.0, step.workers / measured->cores);
    const SimulatedJob job = CutForShards(EqualLayers(25, measured->model_bytes), compute,
                                          SharesOf(cluster), measured->chunk_bytes);

    EXPECT_THAT(Simulate(job, cluster).seconds / step.seconds, DoubleNear(1, 0.1));
  }
}

}  // namespace
}  // namespace muster::sync_simulation_test
