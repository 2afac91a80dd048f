#include "cli/local/job_cluster.h"

#include "gtest/gtest.h"

namespace muster::cli::job_cluster_test {
namespace {

TEST(JobClusterTest, QuotesWordsForAShell) {
  EXPECT_EQ(ShellWord("runs/a-1_b.yaml"), "runs/a-1_b.yaml");
  EXPECT_EQ(ShellWord("data.linear={samples: 8}"), "'data.linear={samples: 8}'");
  EXPECT_EQ(ShellWord("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(ShellWord(""), "''");
}

TEST(JobClusterTest, TheArgumentsToResumeRepeatTheOptionsOfTheUser) {
  EXPECT_EQ(ArgumentsToResume({.file = "stop.yaml"}, "/c/step-10"),
            "stop.yaml --set checkpoint.resume_from=/c/step-10");
  EXPECT_EQ(
      ArgumentsToResume({.file = "my job.yaml",
                         .settings = {"training.epochs=200", "checkpoint.resume_from=old",
                                      "resources.workers={min: 1}"},
                         .dir = "here",
                         .ps = 3,
                         .workers = 2,
                         .devices = "cpu:2",
                         .threads = 4},
                        "/c/step-10"),
      "'my job.yaml' --set training.epochs=200 --set 'resources.workers={min: 1}' --dir here "
      "--ps 3 --workers 2 --devices cpu:2 --threads 4 --set checkpoint.resume_from=/c/step-10");
}

v1::ResourceSpec Workers(int min, int max, int logical) {
  v1::ResourceSpec resources;
  resources.mutable_workers()->set_min(min);
  resources.mutable_workers()->set_max(max);
  resources.mutable_workers()->set_logical(logical);
  return resources;
}

TEST(JobClusterTest, LogicalWorkersHaveEquallyManyThreadsOnAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 3, 4}) {
    EXPECT_EQ(ThreadsFor(Workers(workers, workers, /*logical=*/4), /*cores=*/16), 3) << workers;
  }
  EXPECT_EQ(ThreadsFor(Workers(1, 4, /*logical=*/0), 16), 3);
  EXPECT_EQ(ThreadsFor(Workers(1, 0, /*logical=*/0), 16), 15);
  EXPECT_EQ(ThreadsFor(Workers(1, 4, /*logical=*/64), 16), 1);
  EXPECT_EQ(ThreadsFor(Workers(1, 1, /*logical=*/0), 1), 1);
}

TEST(JobClusterTest, DevicesThatShareAModelShareTheThreadsOfTheirWorker) {
  v1::ResourceSpec resources = Workers(2, 2, /*logical=*/0);
  EXPECT_EQ(DevicesFor(resources, "cpu"), "cpu");
  resources.set_tensor_parallel(3);
  EXPECT_EQ(DevicesFor(resources, "cpu"), "cpu:3");
  EXPECT_EQ(DevicesFor(resources, "cpu:6"), "cpu:6");
  EXPECT_EQ(DevicesFor(resources, "cuda:all"), "cuda:all");
  EXPECT_EQ(ThreadsFor(resources, /*cores=*/16), 2);
}

TEST(JobClusterTest, DevicesThatCannotShareAModelAreRefused) {
  v1::JobSpec spec;
  *spec.mutable_resources() = Workers(1, 1, /*logical=*/0);
  spec.mutable_resources()->set_tensor_parallel(2);
  EXPECT_EQ(StartClusterFor(spec, {.devices = "cpu:3"}, "test").status(),
            absl::InvalidArgumentError(
                "--devices cpu:3: resources.tensor_parallel is 2, which needs a multiple of 2 CPU "
                "devices, or 2 GPUs"));
}

}  // namespace
}  // namespace muster::cli::job_cluster_test
