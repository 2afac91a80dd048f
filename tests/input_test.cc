// Jobs that read files train each sample once per epoch and reach the same bits through kills, on
// every source. Indexes of the data are kept, and refused if they are damaged.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "tests/input_sources.h"
#include "tests/training_cluster.h"

namespace muster::input_test {
namespace {

using ::testing::HasSubstr;

struct Order {
  std::string name;
  std::string data;  // lines below "data:"
  bool drops = false;
};

// A mixture has no blocks.
std::vector<Order> OrdersOf(const std::string& source) {
  return {{"full-continue", "  last_batch: continue\n"},
          {source == "mixture" ? "none-continue" : "block-continue",
           absl::StrCat("  last_batch: continue\n  shuffle: ",
                        source == "mixture" ? "{none: {}}\n"
                                            : "{block: {samples: 10, window_blocks: 4}}\n")},
          {"full-drop", "  last_batch: drop\n", /*drops=*/true}};
}

std::string JobOf(const InputSource& source, const Order& order, int workers) {
  return absl::StrCat("name: ", source.name, "\nmodel: ", source.model, "\ndata:\n", source.data,
                      order.data, "  batch_size: ", kInputBatch,
                      "\n  seed: 3\ntraining: {steps: ", source.steps, ", ", source.training,
                      ", evaluate_every_steps: ", source.steps / 2,
                      "}\nresources: {workers: {min: ", workers, ", max: ", workers,
                      "}, ps: 2}\ncheckpoint: {every_steps: ", std::min(1000, source.steps / 8),
                      ", every: 0s, keep_last: 0}\n");
}

enum class Role { kWorker, kPs, kCoordinator };

class InputTest : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster(
        {.ps = 2,
         .workers = 3,
         .ps_threads = 1,
         .worker_flags = {absl::StrCat("--index_folder=", testing::TempDir(), "/index")}});
  }
  static void TearDownTestSuite() { delete cluster_; }

  // Waits until the job runs and has a checkpoint of `step`. Then kills a member of the job, or the
  // coordinator, and restarts it. Returns the job's number of recoveries after that.
  static int Strike(const std::string& job, Role role, int64_t step, int recoveries) {
    const v1::Job seen = cluster_->Await(job, [&](const v1::Job& now) {
      return now.state() == v1::RUNNING && now.recovery().count() == recoveries &&
             CheckpointStepOf(now) >= step;
    });
    const std::string member = role == Role::kCoordinator ? "coordinator"
                               : role == Role::kPs        ? seen.ps(1)
                                                          : seen.workers(seen.workers_size() - 1);
    EXPECT_TRUE(cluster_->members().Kill(member, SIGKILL).ok()) << member;
    if (role != Role::kCoordinator) {
      ++recoveries;
      cluster_->Await(job,
                      [&](const v1::Job& now) { return now.recovery().count() == recoveries; });
    }
    EXPECT_TRUE(cluster_->members().Restart(member).ok()) << member;
    return recoveries;
  }

  // Checks every checkpoint of a job that counts.
  static void ExpectEachSampleOncePerEpoch(const std::string& job, const InputSource& source,
                                           const Order& order) {
    const auto steps = ListCheckpointSteps(cluster_->checkpoint_directory(job));
    ASSERT_TRUE(steps.ok()) << steps.status();
    ASSERT_GE(steps->size(), 4);
    for (const int64_t step : *steps) {
      SCOPED_TRACE(absl::StrCat("step ", step));
      const std::vector<int64_t> times = TimesTrained(cluster_->Parameters(job, step));
      int64_t all = 0;
      for (const auto& [first, samples] : source.counted) {
        const auto begin = times.begin() + first, end = begin + samples;
        const auto [least, most] = std::minmax_element(begin, end);
        all += std::accumulate(begin, end, int64_t{0});
        if (order.drops && source.counted.size() == 1) {
          // An epoch may omit a sample, and has none twice.
          EXPECT_LE(*most, (step - 1) / (samples / kInputBatch) + 1);
        } else {
          EXPECT_LE(*most - *least, 1) << "no sample comes again before all others have come";
        }
      }
      EXPECT_EQ(all, step * kInputBatch) << "a step counted twice, or never";
      EXPECT_EQ(std::accumulate(times.begin(), times.end(), int64_t{0}), all)
          << "a held-out sample was trained";
    }
  }

  static TrainingCluster* cluster_;
};

TrainingCluster* InputTest::cluster_ = nullptr;

// Each source has every order once, and every number of workers. 54 kills in all: 18 of workers, 18
// of ps, 18 of the coordinator.
TEST_P(InputTest, TrainsToTheSameBitsThroughKills) {
  constexpr Role kStrikes[3][2] = {{Role::kWorker, Role::kCoordinator},
                                   {Role::kPs, Role::kWorker},
                                   {Role::kCoordinator, Role::kPs}};
  const std::vector<std::string> names = InputSourceNames();
  const auto number =
      static_cast<int>(std::ranges::find(names, GetParam()) - names.begin());  // of the source
  const InputSource source = MakeInputSource(GetParam());
  for (int workers = 1; workers <= 3; ++workers) {
    const Order order = OrdersOf(source.name)[(number + workers) % 3];
    SCOPED_TRACE(absl::StrCat(source.name, " ", order.name, " on ", workers, " workers"));
    const std::string file = JobOf(source, order, workers);
    const std::string undisturbed = cluster_->Run(file);
    const std::string job = cluster_->Submit(file);
    int recoveries = 0;
    int64_t step = 0;
    for (const Role role : kStrikes[(number + 2 * workers) % 3]) {
      step += source.steps / 4;
      recoveries = Strike(job, role, step, recoveries);
    }
    EXPECT_EQ(cluster_->AwaitState(job, v1::SUCCEEDED).recovery().count(), recoveries);
    EXPECT_EQ(cluster_->Hashes(job, source.steps), cluster_->Hashes(undisturbed, source.steps));
    EXPECT_EQ(cluster_->Metrics(job).back().loss, cluster_->Metrics(undisturbed).back().loss);
    if (source.counted.empty()) continue;
    ExpectEachSampleOncePerEpoch(undisturbed, source, order);
    ExpectEachSampleOncePerEpoch(job, source, order);
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, InputTest, testing::ValuesIn(InputSourceNames()),
                         [](const auto& source) { return source.param; });

// The others read no files.
TEST(InputSourcesTest, EverySourceOfFilesIsTested) {
  std::vector<std::string> names;
  const auto& sources = *v1::DataSpec::descriptor()->FindOneofByName("source");
  for (int i = 0; i < sources.field_count(); ++i) names.push_back(sources.field(i)->name());
  for (const char* name : {"linear", "synthetic", "external"}) std::erase(names, name);
  EXPECT_THAT(InputSourceNames(), testing::UnorderedElementsAreArray(names));
}

TEST_F(InputTest, AFileThatChangedMeanwhileFailsTheJob) {
  InputSource source = MakeInputSource("csv");
  source.steps = 8'000'000;
  const std::string job = cluster_->Submit(JobOf(source, OrdersOf("csv")[0], /*workers=*/1));
  const v1::Job seen =
      cluster_->Await(job, [](const v1::Job& now) { return CheckpointStepOf(now) > 0; });
  std::string line;
  std::getline(std::ifstream(source.folder + "/0.csv"), line);
  std::ofstream(source.folder + "/1.csv", std::ios::app) << line << "\n";
  ASSERT_TRUE(cluster_->members().Restart(seen.workers(0)).ok());
  const v1::Job failed = cluster_->AwaitState(job, v1::FAILED);
  EXPECT_EQ(failed.reason(), "DATA_CHANGED") << failed.message();
}

std::string ContentOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> FilesOf(const std::string& folder) {
  std::map<std::string, std::string> files;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    files[entry.path()] = ContentOf(entry.path());
  }
  return files;
}

TEST_F(InputTest, ADamagedIndexIsMadeAgain) {
  const std::string folder = testing::TempDir() + "/index";
  InputSource source = MakeInputSource("mixture");  // of tar and TFRecord
  source.steps = 40;
  const std::string file = JobOf(source, OrdersOf("mixture")[0], /*workers=*/2);
  const auto before = FilesOf(folder);
  const std::string first = cluster_->Run(file);
  const auto made = FilesOf(folder);
  EXPECT_EQ(made.size(), before.size() + 2);
  for (const auto& [path, content] : made) {
    std::string damaged = content;
    damaged[damaged.size() / 2] ^= 1;
    std::ofstream(path, std::ios::binary) << damaged;
  }

  const std::string again = cluster_->Run(file);

  EXPECT_EQ(cluster_->Hashes(again, source.steps), cluster_->Hashes(first, source.steps));
  for (const auto& [path, content] : FilesOf(folder)) {
    if (before.contains(path)) continue;
    EXPECT_EQ(content, made.at(path)) << path;
  }
}

// The folder is /proc, in which root cannot make a file either.
TEST_F(InputTest, AnIndexFolderThatTakesNoFilesGivesAWarning) {
  TrainingCluster other(
      {.ps = 2, .workers = 1, .ps_threads = 1, .worker_flags = {"--index_folder=/proc"}});
  InputSource source = MakeInputSource("csv");
  source.steps = 40;
  const std::string file = JobOf(source, OrdersOf("csv")[0], /*workers=*/1);
  const std::string job = other.Run(file);
  EXPECT_EQ(other.Parameters(job, source.steps),
            cluster_->Parameters(cluster_->Run(file), source.steps));
  EXPECT_THAT(ContentOf(other.members().log_path("worker-0")), HasSubstr("cannot be written"));
}

}  // namespace
}  // namespace muster::input_test
