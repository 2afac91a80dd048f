// A network that flips bits, delays data and resets connections during a job. The members must
// detect the faults, and the model must be the same to the bit.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/framework/coordinator_client.h"
#include "tests/chaos/faulty_network.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::network_test {
namespace {

std::string Job(int64_t steps) {
  return absl::Substitute(R"(
name: net
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 64, context: 32, dropout: 0.1}}}
data: {text: {path: examples/data/licences, holdout: 0.05}, batch_size: 8, seed: 1}
training: {steps: $0, optimizer: {adamw: {learning_rate: 1e-3}}, seed: 9}
resources: {workers: {min: 2, max: 2}, ps: 2}
checkpoint: {every_steps: 100, keep_last: 2}
restart: {max_restarts: 1000, backoff: 100ms}
)",
                          steps);
}

// Returns the number of faults. To run longer: NETWORK_FAULTS=1000 bazel test
// //tests/chaos:network_test --test_env=NETWORK_FAULTS --test_timeout=7200. It sets the number of
// flips and of resets.
uint32_t FaultsWanted() {
  const char* const text = getenv("NETWORK_FAULTS");
  uint32_t wanted = 2;
  EXPECT_TRUE(text == nullptr || absl::SimpleAtoi(text, &wanted)) << text;
  return wanted;
}

class NetworkTest : public ::testing::Test {
 protected:
  NetworkTest() {
    const std::string path = ::testing::TempDir() + "/faults";
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(ftruncate(file, sizeof(NetworkFaults)), 0);
    void* const memory =
        mmap(nullptr, sizeof(NetworkFaults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    EXPECT_NE(memory, MAP_FAILED);
    faults_ = static_cast<NetworkFaults*>(memory);
    const std::string library = absl::StrCat(getenv("TEST_SRCDIR"), "/", getenv("TEST_WORKSPACE"),
                                             "/tests/chaos/libfaulty_network.so");
    EXPECT_EQ(access(library.c_str(), R_OK), 0) << library;
    setenv(kNetworkFaultsVariable, path.c_str(), 1);
    setenv("LD_PRELOAD", library.c_str(), 1);
  }
  ~NetworkTest() override { munmap(faults_, sizeof(NetworkFaults)); }

  // Runs a job with the faults of `disturb` until `done`, then without faults.
  template <typename Disturb, typename Done>
  void ExpectTheSameModel(Disturb disturb, Done done) {
    TrainingCluster cluster({.ps = 2,
                             .workers = 2,
                             .ps_threads = 1,
                             .ps_flags = {"--transport=tcp", "--data_checksum=on"},
                             .worker_flags = {"--transport=tcp", "--data_checksum=on"}});
    unsetenv("LD_PRELOAD");
    std::map<std::string, pid_t> before;
    for (const std::string& name : cluster.members().names())
      before[name] = cluster.members().pid(name);
    cli::CoordinatorClient client(cluster.members().address());
    const std::string job = cluster.Submit(Job(1'000'000'000));
    cluster.AwaitStep(job, 5);

    disturb(*faults_);
    cluster.Await(
        job, [&](const v1::Job&) { return done(*faults_); }, absl::Hours(2));
    faults_->flips = faults_->delays = faults_->resets = 0;
    const int64_t step = cluster.Get(job).progress().step();
    cluster.AwaitStep(job, step + 5);

    EXPECT_TRUE(client.SuspendJob(job).ok());
    const int64_t last = cluster.AwaitState(job, v1::SUSPENDED).progress().step();
    const std::string undisturbed = cluster.Submit(Job(last));
    cluster.AwaitState(undisturbed, v1::SUCCEEDED, absl::Hours(1));
    EXPECT_EQ(cluster.Hashes(job, last), cluster.Hashes(undisturbed, last)) << "at step " << last;
    for (const auto& [name, pid] : before) {
      EXPECT_EQ(cluster.members().pid(name), pid) << name << " has ended\n" << cluster.Logs();
    }
    for (const auto& [name, url] : MetricsUrls(cluster)) {
      if (name == "coordinator") continue;  // has no data plane
      noticed_ += MetricTotal(ScrapeMetrics(url), "muster_data_port_damaged_frames_total");
    }
    std::cout << faults_->flipped << " bits flipped, of which " << noticed_
              << " by a checksum noticed, " << faults_->reset << " connections reset, "
              << faults_->delayed << " delays, " << cluster.Get(job).recovery().count()
              << " recoveries, " << last << " steps" << std::endl;
  }

  NetworkFaults* faults_ = nullptr;
  double noticed_ = 0;  // damaged messages that members detected
};

TEST_F(NetworkTest, BitsThatFlipOnTheWayAreNoticed) {
  ExpectTheSameModel([](NetworkFaults& faults) { faults.flips = 16; },
                     [](const NetworkFaults& faults) { return faults.flipped >= FaultsWanted(); });
  // Some flips hit bytes that no checksum covers, or bytes that a closed link never reads.
  EXPECT_GE(2 * noticed_, faults_->flipped);
}

TEST_F(NetworkTest, ConnectionsThatBreakAndBytesThatComeLateLoseNothing) {
  ExpectTheSameModel(
      [](NetworkFaults& faults) {
        faults.delays = 500;
        faults.resets = 60;
      },
      [](const NetworkFaults& faults) {
        return faults.reset >= FaultsWanted() &&
               faults.reset + faults.delayed >= 5 * FaultsWanted();
      });
  EXPECT_GT(faults_->delayed, 0) << "of ten faults nine should be delays";
}

}  // namespace
}  // namespace muster::network_test
