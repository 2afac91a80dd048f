// Projects the training speed of well-known models on clusters that are not available. Prints the
// table of docs/benchmarks.md. The program's flags are its assumptions.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "glog/logging.h"
#include "lib/plan/chunk_placement.h"
#include "tests/sim/model_layers.h"
#include "tests/sim/sync_simulation.h"

ABSL_FLAG(std::vector<std::string>, nodes, std::vector<std::string>({"8", "64", "256", "1024"}),
          "nodes with GPUs");
ABSL_FLAG(std::vector<std::string>, gigabits, std::vector<std::string>({"25", "100", "400"}),
          "of each node's card");
ABSL_FLAG(double, payload_share, 0.95, "of a card's bits that are payload");
ABSL_FLAG(double, latency_us, 10, "from a process to one on another host");
ABSL_FLAG(double, message_us, 1, "that a card is busy with a message beside its bytes");
ABSL_FLAG(double, sum_gigabytes, 100, "per second that a host's shard threads add up together");
ABSL_FLAG(double, apply_gigabytes, 50, "per second of values that they update together");
ABSL_FLAG(double, chunk_megabytes, 1, "largest piece of a parameter");

namespace muster {
namespace {

// Seconds of forward and backward on one node, independent of the number of nodes. A node has 8
// A100 GPUs, each with the batch named here. It sums their gradients without the network card.
struct Workload {
  const char* name;
  const char* zoo;
  const char* size;  // argument of the zoo's model; "" for none
  double seconds;
  const char* source;
};
constexpr Workload kWorkloads[] = {
    {"ResNet-50", "resnet50", "", 0.1036,
     "256 images per GPU at 2470 images/s, NVIDIA DeepLearningExamples, A100 mixed precision"},
    {"VGG-16", "vgg16", "", 0.0545,
     "128 images per GPU, 46.5 GFLOP each, assumed at 35 % of 312 TFLOP/s"},
    {"BERT-large", "bert", "large", 0.1125,
     "64 sequences of 128 per GPU at 569 sequences/s, NVIDIA DeepLearningExamples, A100"},
    {"GPT-2 1.5B", "gpt2", "1.5b", 0.60,
     "8 sequences of 1024 per GPU, 6 FLOP per parameter and token and attention, assumed at "
     "45 % of 312 TFLOP/s"},
};

v1::ModelSpec SpecOf(const Workload& workload) {
  v1::ModelSpec spec;
  spec.mutable_zoo()->set_name(workload.zoo);
  if (*workload.size != '\0') {
    (*spec.mutable_zoo()->mutable_args()->mutable_fields())["size"].set_string_value(workload.size);
  }
  return spec;
}

// Returns the speed per node as a share of the speed without communication.
double Efficiency(const ModelLayers& model, double seconds, double gigabits, int n, int separate,
                  bool colocated, bool allreduce) {
  SimulatedCluster cluster{
      .workers = n,
      .allreduce = allreduce,
      .network = {.bytes_per_second = gigabits * 1e9 / 8 * absl::GetFlag(FLAGS_payload_share),
                  .latency_seconds = absl::GetFlag(FLAGS_latency_us) * 1e-6,
                  .message_seconds = absl::GetFlag(FLAGS_message_us) * 1e-6},
      .sum_bytes_per_second = absl::GetFlag(FLAGS_sum_gigabytes) * 1e9,
      .apply_bytes_per_second = absl::GetFlag(FLAGS_apply_gigabytes) * 1e9};
  std::vector<std::string> worker_hosts, shard_hosts;
  for (int i = 0; i < n; ++i) worker_hosts.push_back(std::to_string(i));
  for (int i = 0; colocated && i < n; ++i) cluster.shard_hosts.push_back(i);
  for (int i = 0; i < separate; ++i) cluster.shard_hosts.push_back(n + i);
  for (const int host : cluster.shard_hosts) shard_hosts.push_back(std::to_string(host));
  const std::vector<double> shares = ShardShares(worker_hosts, shard_hosts);
  const SimulatedJob job =
      CutForShards(model, seconds, shares, absl::GetFlag(FLAGS_chunk_megabytes) * (1 << 20));
  return seconds / Simulate(job, cluster).seconds;
}

int Main() {
  std::printf("| model | Gbit/s | nodes | k = n/4 | k = n/2 | k = n | colocated | allreduce |\n");
  std::printf("|---|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const Workload& workload : kWorkloads) {
    const auto model = LayersOf(SpecOf(workload));
    CHECK(model.ok()) << model.status();
    std::fprintf(stderr, "%s: %.0f MB of f32 gradients, %.4f s a step: %s\n", workload.name,
                 model->bytes / 1e6, workload.seconds, workload.source);
    for (const std::string& rate : absl::GetFlag(FLAGS_gigabits)) {
      for (const std::string& nodes : absl::GetFlag(FLAGS_nodes)) {
        const int n = std::atoi(nodes.c_str());
        const double gigabits = std::atof(rate.c_str());
        CHECK(n >= 2 && gigabits > 0) << "--nodes from 2 on, --gigabits above 0";
        const auto efficiency = [&](int separate, bool colocated, bool allreduce) {
          return 100 *
                 Efficiency(*model, workload.seconds, gigabits, n, separate, colocated, allreduce);
        };
        std::printf("| %s | %s | %d | %.0f %% | %.0f %% | %.0f %% | %.0f %% | %.0f %% |\n",
                    workload.name, rate.c_str(), n, efficiency(std::max(1, n / 4), true, false),
                    efficiency(std::max(1, n / 2), true, false), efficiency(n, false, false),
                    efficiency(0, true, false), efficiency(0, true, true));
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  absl::SetProgramUsageMessage("Projected efficiency of data-parallel training.");
  absl::ParseCommandLine(argc, argv);
  return muster::Main();
}
