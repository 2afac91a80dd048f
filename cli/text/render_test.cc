// Tests options that are refused. tests/k8s/render_test.py tests that batch systems accept the
// output.
#include "cli/text/render.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/job/job_file.h"

namespace muster::cli::render_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

v1::JobSpec Job() {
  const auto job = ParseJobFile(
      "name: line\n"
      "model: {zoo: {name: linear}}\n"
      "data: {linear: {slope: 3, samples: 64}, batch_size: 8}\n"
      "training: {steps: 10, optimizer: {sgd: {learning_rate: 0.1}}}\n"
      "resources: {workers: {min: 2, max: 4}, ps: 1}\n",
      "job.yaml", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

TEST(RenderTest, DefaultsToTheMaximumOfWorkers) {
  const auto rendered = Render(Job(), {.target = RenderTarget::kSlurm, .insecure = true});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_THAT(*rendered, HasSubstr("#SBATCH --nodes=4\n"));
  EXPECT_THAT(*rendered, Not(ContainsRegex("@[A-Z]+@")));
}

TEST(RenderTest, AJobWithoutPsStartsNone) {
  v1::JobSpec job = Job();
  job.mutable_resources()->set_ps(0);
  const auto rendered = Render(job, {.target = RenderTarget::kSlurm, .insecure = true});
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_THAT(*rendered, Not(HasSubstr("/ps")));
}

TEST(RenderTest, AnErrorNamesTheOptionThatDoesNotFit) {
  const struct {
    RenderOptions options;
    std::string says;
  } faults[] = {
      {{.workers = 1}, "--workers: the job takes 2 to 4 (is 1)"},
      {{.workers = 5}, "--workers"},
      {{.devices = "cuda:all"}, "--gpus"},
      {{.gpus = 8}, "--gpus"},
      {{.queue = "night"}, "--queue: is only for kueue, volcano, slurm"},
      {{.target = RenderTarget::kKueue}, "--queue: name the LocalQueue"},
      {{.target = RenderTarget::kSlurm}, "--tls"},
      {{.target = RenderTarget::kSlurm, .insecure = true, .tls = "/tls"}, "--tls"},
      {{.tls = "/tls"}, "--tls: is only for slurm"},
      {{.target = RenderTarget::kSlurm, .insecure = true, .state_claim = "x"}, "--state-claim"},
      {{.name_space = "A b"}, "--namespace"},
      {{.image_prefix = "x\n  y: z"}, "--image-prefix"},
      {{.target = RenderTarget::kSlurm, .insecure = true, .programs = "/opt;rm"}, "--programs"},
  };
  for (const auto& fault : faults) {
    const auto rendered = Render(Job(), fault.options);
    EXPECT_TRUE(absl::IsInvalidArgument(rendered.status())) << fault.says;
    EXPECT_THAT(rendered.status().message(), HasSubstr(fault.says));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(ParseRenderTarget("pbs").status()));
}

}  // namespace
}  // namespace muster::cli::render_test
