// A long run needs no more memory, threads or files than a short one.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::steady_state_test {
namespace {

struct Footprint {
  int64_t resident_bytes = 0;
  int64_t threads = 0;
  int64_t files = 0;
};

int64_t CountEntries(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

Footprint FootprintOf(pid_t pid) {
  std::ifstream statm(absl::StrCat("/proc/", pid, "/statm"));
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  const std::string process = absl::StrCat("/proc/", pid);
  return {resident * 4096, CountEntries(process + "/task"), CountEntries(process + "/fd")};
}

TEST(SteadyStateTest, MemoryThreadsAndFilesStayFlatOver2000Steps) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string job = cluster.Submit(R"(
name: steady
model: {zoo: {name: gpt, args: {layers: 2, heads: 2, channels: 32, context: 16}}}
data: {text: {path: examples/data/licences, holdout: 0.01}, batch_size: 8}
training: {steps: 4100, optimizer: {adamw: {learning_rate: 1e-3}}, evaluate_every_steps: 500}
resources: {workers: {min: 2, max: 2}, ps: 2}
checkpoint: {every_steps: 100}
chunk_bytes: 4096
)");
  // Pools of allocators, gRPC and the store fill before that.
  cluster.AwaitStep(job, 2000);
  std::map<std::string, Footprint> before, after;
  for (const std::string& name : cluster.members().names())
    before[name] = FootprintOf(cluster.members().pid(name));
  cluster.AwaitStep(job, 4000);
  for (const std::string& name : cluster.members().names())
    after[name] = FootprintOf(cluster.members().pid(name));
  cluster.AwaitState(job, v1::SUCCEEDED);

  for (const auto& [name, start] : before) {
    const Footprint end = after[name];
    // 2,000 steps of 2 x ~90 pushes: a leak of 16 bytes per message would be 6 MB.
    EXPECT_LE(end.resident_bytes - start.resident_bytes, 4 << 20) << name;
    EXPECT_LE(end.threads - start.threads, 4) << name << ": gRPC may add a poller";
    EXPECT_LE(end.files - start.files, 4) << name;
  }
}

}  // namespace
}  // namespace muster::steady_state_test
