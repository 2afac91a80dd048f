// Every codec trains a character GPT as well as plain gradients do, and sends exactly the bytes
// that it reports.
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "lib/codec/codec.h"
#include "lib/graph/model/model.h"
#include "lib/plan/parameter_table.h"
#include "proto/muster/v1/plan.pb.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::compression_test {
namespace {

constexpr int kWorkers = 2;
constexpr int kSteps = 300;

// examples/char_gpt.yaml at a fifth of its size, so that ten jobs take a minute or two.
std::string CharGpt(absl::string_view optimizer, absl::string_view sync) {
  return absl::StrCat(R"(
name: char-gpt
model: {zoo: {name: gpt, args: {layers: 2, heads: 4, channels: 64, context: 48}}}
data: {text: {path: examples/data/licences, holdout: 0.1}, batch_size: 16, seed: 7}
training:
  steps: )",
                      kSteps, R"(
  optimizer: )",
                      optimizer, R"(
  schedule: {warmup_steps: 50, cosine: {final_ratio: 0.1}}
  seed: 1
sync: )",
                      sync, R"(
resources: {workers: {min: 2}, ps: 1}
)");
}

// Bytes of gradients and of values that all workers and ps have counted so far.
struct Traffic {
  double pushed, taken;         // gradients, as counted by the workers and by the ps
  double received, handed_out;  // values, as counted by the workers and by the ps

  friend Traffic operator-(const Traffic& a, const Traffic& b) {
    return {a.pushed - b.pushed, a.taken - b.taken, a.received - b.received,
            a.handed_out - b.handed_out};
  }
};

Traffic Counted(TrainingCluster& cluster) {
  Traffic traffic{};
  for (const auto& [member, url] : MetricsUrls(cluster)) {
    const std::string page = ScrapeMetrics(url);
    traffic.pushed += MetricTotal(page, "muster_worker_push_bytes_total");
    traffic.taken += MetricTotal(page, "muster_ps_push_bytes_total");
    traffic.received += MetricTotal(page, "muster_worker_params_bytes_total");
    traffic.handed_out += MetricTotal(page, "muster_ps_params_bytes_total");
  }
  return traffic;
}

// Returns the traffic that follows from the formats of the job's plan. There is one shard, so the
// plan cuts nothing finer than the job requests.
Traffic Expected(const v1::JobSpec& spec) {
  v1::JobPlan plan;
  *plan.mutable_spec() = spec;
  *plan.mutable_graph() = LoadModel(spec.model())->graph;
  for (const v1::PlanChunk& chunk : CutIntoChunks(plan.graph(), spec.chunk_bytes())) {
    *plan.add_chunks() = chunk;
  }
  double gradients = 0, values = 0;
  for (const ChunkId c : NumbersBelow<ChunkId>(plan.chunks_size())) {
    gradients += static_cast<double>(PushFormat(plan, c).bytes);
    values += static_cast<double>(ValuesFormat(plan, c).bytes);
  }
  const double pushed = kWorkers * kSteps * gradients;
  const double received = kWorkers * (kSteps + 1) * values;  // one more time, at the start
  return {.pushed = pushed, .taken = pushed, .received = received, .handed_out = received};
}

void ExpectWithinOnePerCent(double counted, double expected) {
  EXPECT_NEAR(counted, expected, 0.01 * expected);
}

class CompressionTest : public ::testing::Test {
 protected:
  // Trains a job and checks the counters. Returns the loss on the held-out text after the last
  // step.
  double TrainedLoss(const std::string& optimizer, const std::string& sync) {
    const Traffic before = Counted(cluster_);
    const v1::Job done = cluster_.AwaitState(cluster_.Submit(CharGpt(optimizer, sync)),
                                             v1::SUCCEEDED, absl::Minutes(5));
    const Traffic counted = Counted(cluster_) - before, expected = Expected(done.spec());
    ExpectWithinOnePerCent(counted.pushed, expected.pushed);
    ExpectWithinOnePerCent(counted.taken, expected.taken);
    ExpectWithinOnePerCent(counted.received, expected.received);
    ExpectWithinOnePerCent(counted.handed_out, expected.handed_out);
    LOG(INFO) << optimizer << " " << sync << ": " << done.progress().evaluation_loss();
    return done.progress().evaluation_loss();
  }

  // `ratios`: by sync section, the largest allowed ratio of its loss to that of plain gradients.
  void ExpectLossesWithin(const std::string& optimizer,
                          const std::map<std::string, double>& ratios) {
    const double plain = TrainedLoss(optimizer, "{compression: none}");
    ASSERT_LT(plain, 2.8) << "the job learned nothing";  // at the start it is ln 256 = 5.5
    for (const auto& [sync, ratio] : ratios) {
      SCOPED_TRACE(sync);
      EXPECT_LE(TrainedLoss(optimizer, sync), ratio * plain);
    }
  }

  TrainingCluster cluster_{{.ps = 1, .workers = kWorkers, .ps_threads = 1}};
};

TEST_F(CompressionTest, CodecsReachTheLossOfPlainGradientsInTheBytesTheySay) {
  ExpectLossesWithin("{adamw: {learning_rate: 1e-3, beta1: 0.9, beta2: 0.95, weight_decay: 0.1}}",
                     {{"{compression: fp16}", 1.01},
                      {"{compression: bf16}", 1.01},
                      {"{compression: bf16, values: bf16}", 1.01},
                      {"{compression: int8}", 1.03},
                      {"{compression: onebit}", 1.03},
                      {"{compression: {kind: powersgd, rank: 4}}", 1.03}});
}

// Adam weights small and large elements equally, but top-k sends only large ones. Top-k is made for
// momentum (docs/codecs.md has the figures of both).
TEST_F(CompressionTest, TopKReachesTheLossOfPlainGradientsWithMomentum) {
  ExpectLossesWithin("{sgd: {learning_rate: 0.1, momentum: 0.9}}",
                     {{"{compression: {kind: topk, ratio: 0.05}}", 1.03},
                      {"{compression: {kind: powersgd, rank: 4}}", 1.03}});
}

}  // namespace
}  // namespace muster::compression_test
