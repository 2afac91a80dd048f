// Jobs that decode their samples reach the same bits through kills, on every source, and refuse
// data that changed meanwhile.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/convert/convert.h"
#include "tests/training_cluster.h"

namespace muster::input_test {
namespace {

struct Source {
  std::string name;
  std::string model;
  std::string data;  // without the batch
  int steps;         // of some seconds, so that members die in between
};

std::string JobOf(const Source& source) {
  return absl::StrCat("name: ", source.name, "\nmodel: {zoo: ", source.model, "}\ndata:\n",
                      source.data, "  batch_size: 16\n  last_batch: continue\n  seed: 3\n",
                      "training: {steps: ", source.steps,
                      ", optimizer: {adamw: {learning_rate: 1e-3}}, evaluate_every_steps: 500}\n"
                      "resources: {workers: {min: 2, max: 2}, ps: 2}\n"
                      "checkpoint: {every_steps: ",
                      std::min(1000, source.steps / 8), ", keep_last: 0}\n");
}

// Writes two files of 300 lines each: four numbers and a category.
std::string MakeTable() {
  const std::string folder = absl::StrCat(testing::TempDir(), "/table");
  std::filesystem::create_directories(folder);
  for (int file = 0; file < 2; ++file) {
    std::ofstream out(absl::StrCat(folder, "/", file, ".csv"));
    out << "a,b,c,d,kind\n";
    for (int i = 0; i < 300; ++i) {
      out << i % 7 << "," << i % 5 - 2 << "," << 0.5 * file << "," << i % 3 << ",kind" << i % 4
          << "\n";
    }
  }
  return folder;
}

std::string MakeShards() {
  const std::string folder = absl::StrCat(testing::TempDir(), "/shards");
  std::filesystem::remove_all(folder);
  const auto made = Convert("examples/data/emoji", folder, {.shard_bytes = 200'000});
  EXPECT_TRUE(made.ok()) << made.status();
  return folder;
}

std::vector<Source> Sources() {
  const std::string network =
      "{name: resnet50, args: {image: 32, classes: 4, blocks: \"1\", width: 4}}";
  const std::string image =
      "  image:\n"
      "    train: [random_resized_crop: {size: 32}, random_flip: {}, rand_augment: {}]\n"
      "    evaluate: [resize: {size: 36}, center_crop: {size: 32}]\n"
      "    mean: [0.5, 0.4, 0.3]\n"
      "    std: [0.2, 0.2, 0.3]\n";
  return {
      {"images", network,
       absl::StrCat("  images: {path: examples/data/emoji, holdout: 0.2}\n", image),
       Lengthened(3600)},
      {"tar", network,
       absl::StrCat("  tar:\n    path: ", MakeShards(),
                    "\n    holdout: 0.1\n    inputs:\n"
                    "      input: {extension: jpg, image: {}}\n"
                    "      target: {extension: cls, integer: {}}\n"
                    "  shuffle: {block: {samples: 20, window_blocks: 4}}\n",
                    image),
       Lengthened(3600)},
      {"tfrecord",
       "{name: bert, args: {layers: 1, heads: 2, channels: 32, context: 64, positions: 64, "
       "vocabulary: 2048}}",
       "  tfrecord:\n    path: examples/data/bert/*.tfrecord\n    holdout: 0.1\n    inputs:\n"
       "      tokens: {fixed: {feature: input_ids}}\n"
       "      segments: {fixed: {feature: segment_ids}}\n"
       "      masked_tokens: {scatter: {positions: masked_lm_positions, values: masked_lm_ids, "
       "weights: masked_lm_weights}}\n"
       "      next_sentence: {fixed: {feature: next_sentence_labels}}\n"
       "  shuffle: {block: {samples: 50, window_blocks: 4}}\n",
       Lengthened(1800)},
      {"csv", "{name: mlp, args: {inputs: 4, hidden: \"16\", classes: 8}}",
       absl::StrCat("  csv:\n    path: ", MakeTable(),
                    "\n    holdout: 0.1\n    inputs:\n"
                    "      input: {columns: [a, b, c, d], number: {}}\n"
                    "      target: {columns: [kind], hash: {buckets: 8}}\n"),
       Lengthened(30'000)},
      {"mixture", "{name: gpt, args: {layers: 1, heads: 2, channels: 32, context: 32}}",
       "  mixture:\n    parts:\n"
       "      - {weight: 0.7, data: {text: {path: examples/data/licences, holdout: 0.1}}}\n"
       "      - {weight: 0.3, data: {text: {path: examples/data/licences/GPL-3}}}\n",
       Lengthened(3600)},
  };
}

class InputTest : public testing::Test {
 protected:
  void Kill(const std::string& member) {
    ASSERT_TRUE(cluster_.members().Kill(member, SIGKILL).ok()) << member;
  }
  void Restart(const std::string& member) {
    ASSERT_TRUE(cluster_.members().Restart(member).ok()) << member;
  }

  TrainingCluster cluster_{{.ps = 2, .workers = 2, .ps_threads = 1}};
};

// Twenty kills in all: each source meets the death of both workers and of a ps.
TEST_F(InputTest, EverySourceTrainsToTheSameBitsThroughKills) {
  for (const Source& source : Sources()) {
    SCOPED_TRACE(source.name);
    const std::string undisturbed = cluster_.Run(JobOf(source));
    const std::string job = cluster_.Submit(JobOf(source));
    int recoveries = 0;
    for (const char* member : {"worker-0", "ps-1", "worker-1", "worker-0"}) {
      cluster_.Await(job, [&](const v1::Job& seen) {
        return seen.state() == v1::RUNNING && seen.generation() == recoveries + 1 &&
               seen.progress().step() >= (recoveries + 1) * source.steps / 12;
      });
      Kill(member);
      ++recoveries;
      cluster_.Await(job,
                     [&](const v1::Job& seen) { return seen.recovery().count() >= recoveries; });
      Restart(member);
    }
    EXPECT_EQ(cluster_.AwaitState(job, v1::SUCCEEDED).recovery().count(), recoveries);
    EXPECT_EQ(cluster_.Hashes(job, source.steps), cluster_.Hashes(undisturbed, source.steps));
    EXPECT_EQ(cluster_.Metrics(job).back().loss, cluster_.Metrics(undisturbed).back().loss);
  }
}

TEST_F(InputTest, AFileThatChangedMeanwhileFailsTheJob) {
  const std::string table = MakeTable();
  const Source source = {"changed", "{name: mlp, args: {inputs: 4, hidden: \"16\", classes: 8}}",
                         absl::StrCat("  csv:\n    path: ", table,
                                      "\n    inputs:\n"
                                      "      input: {columns: [a, b, c, d], number: {}}\n"
                                      "      target: {columns: [kind], hash: {buckets: 8}}\n"),
                         8'000'000};
  const std::string job = cluster_.Submit(JobOf(source));
  cluster_.Await(job, [](const v1::Job& seen) { return CheckpointStepOf(seen) > 0; });
  std::ofstream(absl::StrCat(table, "/1.csv"), std::ios::app) << "1,1,1,1,kind9\n";
  for (const char* member : {"worker-0", "worker-1"}) {
    Kill(member);
    Restart(member);
  }
  const v1::Job failed = cluster_.AwaitState(job, v1::FAILED);
  EXPECT_EQ(failed.reason(), "DATA_CHANGED") << failed.message();
}

}  // namespace
}  // namespace muster::input_test
