// Tests the program as a user runs it.
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::cli::muster_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code = -1;
  std::string output;
};

// Runs `command` in a shell and returns its stdout.
Outcome Shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    outcome.output.append(buffer, n);
  outcome.exit_code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

// Runs `muster arguments`. The output has stderr only if the arguments redirect it.
Outcome Muster(const std::string& arguments) { return Shell("cli/muster " + arguments); }

std::string Folder(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

TEST(MusterTest, RunTrainsAJobAndPrintsTheResult) {
  const Outcome run = Muster(absl::StrCat("run examples/linear.yaml --dir ", Folder("run")));

  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("SUCCEEDED  linear-1  640 steps"));
  EXPECT_THAT(run.output, HasSubstr("last loss"));
  EXPECT_THAT(run.output, HasSubstr("/checkpoints/step-00000640"));
  EXPECT_THAT(run.output, Not(HasSubstr("/metrics"))) << "the processes have ended";
  const Outcome verify = Muster(absl::StrCat("checkpoint verify ", Folder("run"),
                                             "/state/jobs/linear-1/checkpoints/step-00000640"));
  EXPECT_EQ(verify.exit_code, 0) << verify.output;
}

TEST(MusterTest, RunKeepsItsStateInTheWorkingDirectory) {
  const std::string temporary = Folder("tmp"), folder = Folder("here");
  const std::string command =
      absl::StrCat("mkdir -p ", temporary, " ", folder, " && cd ", folder, " && TMPDIR=", temporary,
                   " $OLDPWD/cli/muster run $OLDPWD/examples/linear.yaml");

  EXPECT_THAT(Shell(command).output, HasSubstr("/here/muster-runs/linear-1/state/jobs/linear-1/"));
  EXPECT_THAT(Shell(command).output, HasSubstr("/here/muster-runs/linear-2/state/jobs/linear-1/"));
  EXPECT_EQ(Shell("ls -A " + temporary).output, "") << "files are left in TMPDIR";
}

TEST(MusterTest, RunOfATextModelEndsWithASample) {
  const Outcome run = Muster(absl::StrCat(
      "run examples/char_gpt.yaml --workers 1 --ps 1 --set training.steps=3 --set ",
      "training.schedule.warmup_steps=1 --set model.zoo.args='{layers: 1, heads: 1, channels: 8, ",
      "context: 16}' --set data.text.path=examples/char_gpt.yaml --dir ", Folder("sample")));

  EXPECT_EQ(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("a sample of what the model writes"));
}

TEST(MusterTest, BenchSyncMeasuresEverySizeWithRealPs) {
  for (const char* members : {"--transport shm", "--transport tcp --workers 2 --ps 2"}) {
    const Outcome bench =
        Muster(absl::StrCat("bench sync --sizes 1K,8M --steps 2 --rounds 1 -o name ", members));

    EXPECT_EQ(bench.exit_code, 0);
    long small = 0, large = 0;  // bytes
    double rates[2] = {}, round_trips[2] = {};
    ASSERT_EQ(std::sscanf(bench.output.c_str(), "%ld %lf %lf %ld %lf %lf", &small, &rates[0],
                          &round_trips[0], &large, &rates[1], &round_trips[1]),
              6)
        << bench.output;
    EXPECT_EQ(small, 1 << 10);
    EXPECT_EQ(large, 8 << 20);
    for (const double figure : {rates[0], rates[1], round_trips[0], round_trips[1]}) {
      EXPECT_GT(figure, 0) << bench.output;
    }
  }
  EXPECT_EQ(Muster("bench sync --sizes 3 2>&1").exit_code, 2);

  const Outcome table = Muster("bench sync --sizes 1K --steps 2 --rounds 1");
  EXPECT_THAT(table.output, HasSubstr("MEDIAN Gbit/s  SLOWEST  FASTEST")) << "bits, not bytes";
  EXPECT_THAT(table.output, HasSubstr("\nGbit/s of f32 gradients one way"));
}

TEST(MusterTest, BenchModelRefusesGpuOptionsOnACpu) {
  const std::string bench = "bench model --zoo linear --batch 2 --steps 1 ";
  const Outcome resident = Muster(absl::StrCat(bench, "--values resident 2>&1"));
  EXPECT_EQ(resident.exit_code, 2);
  EXPECT_THAT(resident.output, HasSubstr("--values resident: a CPU device computes on values"));
  const Outcome autotuned = Muster(absl::StrCat(bench, "--autotuned 2>&1"));
  EXPECT_EQ(autotuned.exit_code, 2);
  EXPECT_THAT(autotuned.output, HasSubstr("--autotuned: a CPU device"));
  EXPECT_EQ(Muster(absl::StrCat(bench, "--autotuned --deterministic 2>&1")).exit_code, 2);
  EXPECT_EQ(Muster(absl::StrCat(bench, "--values host 2>&1")).exit_code, 2);
}

TEST(MusterTest, BenchModelPrintsItsProfileForProgramsToo) {
  const Outcome bench =
      Muster("bench model --zoo linear --batch 2 --steps 1 --deterministic --profile -o json");
  EXPECT_EQ(bench.exit_code, 0);
  EXPECT_THAT(bench.output, HasSubstr("\"profile\": ["));
  EXPECT_THAT(bench.output, HasSubstr("\"op\": \"Linear\""));
}

TEST(MusterTest, AFaultyJobStartsNothing) {
  const Outcome run = Muster(absl::StrCat("run examples/linear.yaml --set training.step=5 --dir ",
                                          Folder("faulty"), " 2>&1"));

  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.output, HasSubstr("unknown field; did you mean 'steps'?"));
  EXPECT_EQ(Muster(absl::StrCat("local status --dir ", Folder("faulty"))).exit_code, 3);
}

TEST(MusterTest, ALocalClusterRunsJobsUntilItIsStopped) {
  setenv("HOME", Folder("home").c_str(), 1);
  ASSERT_EQ(Muster("local up --ps 1 --workers 1").exit_code, 0);
  const Outcome larger = Muster("local up --ps 2 2>&1");
  EXPECT_EQ(larger.exit_code, 6);
  EXPECT_THAT(larger.output, HasSubstr("a local cluster with 1 ps and 1 worker ("));

  EXPECT_EQ(Muster("members -o name").output, "ps-0\nworker-0\n");
  EXPECT_EQ(Muster("submit examples/linear.yaml --wait -o name").output, "linear-1\n");
  EXPECT_EQ(Muster("list --state succeeded -o name").output, "linear-1\n");
  EXPECT_THAT(Muster("describe linear-1").output, HasSubstr("CHECKPOINT_COMMITTED"));
  EXPECT_EQ(Muster("checkpoint list linear-1 -o name").output, "linear-1@640\n");
  EXPECT_EQ(Muster("checkpoint verify linear-1@640").exit_code, 0);
  EXPECT_EQ(Muster("suspend linear-1").exit_code, 6);

  // Relative paths are relative to the folder of the command, not to the folder in which the
  // cluster was started.
  const std::string elsewhere = Folder("elsewhere");
  const std::string there = absl::StrCat("mkdir -p ", elsewhere, "/texts && cp examples/*.yaml ",
                                         elsewhere, "/texts && cd ", elsewhere, " && ");
  const std::string text = " $OLDPWD/examples/char_gpt.yaml --set data.text.path=texts ";
  EXPECT_EQ(Shell(there + "$OLDPWD/cli/muster validate" + text + "2>&1").exit_code, 0);
  EXPECT_THAT(
      Shell(there + "$OLDPWD/cli/muster submit -o jsonpath={.spec.data.text.path}" + text).output,
      HasSubstr("/elsewhere/texts\n"));
  const Outcome missing =
      Muster("submit examples/char_gpt.yaml --set data.text.path=no/texts 2>&1");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.output, HasSubstr("/no/texts: no such file or directory on "));
  EXPECT_EQ(Muster("delete linear-1").exit_code, 0);
  EXPECT_EQ(Muster("get linear-1").exit_code, 3);

  EXPECT_EQ(Muster("local down").exit_code, 0);
  EXPECT_EQ(Muster("local status").exit_code, 3);
}

// Kills the member of the local cluster and waits until it is gone.
void KillMember(const std::string& name) {
  ASSERT_EQ(
      Muster(absl::StrCat("local status | awk '$1 == \"", name, "\" {print $3}' | xargs kill -9"))
          .exit_code,
      0);
  while (Muster(absl::StrCat("local status | grep -q '^", name, " *ended'")).exit_code != 0) {
  }
}

TEST(MusterTest, LocalUpRestartsEndedMembersWithTheirOldFlags) {
  setenv("HOME", Folder("healing").c_str(), 1);
  const Outcome up = Muster("local up --ps 1 --workers 2");
  ASSERT_EQ(up.exit_code, 0);

  KillMember("worker-1");
  const Outcome healed = Muster("local up 2>&1");

  EXPECT_EQ(healed.exit_code, 0);
  EXPECT_THAT(healed.output, HasSubstr("worker-1 (pid "));
  EXPECT_THAT(healed.output, HasSubstr("ended: started again, pid "));
  EXPECT_THAT(healed.output, Not(HasSubstr("worker-0")));
  EXPECT_EQ(Muster("members -o name").output, "ps-0\nworker-0\nworker-1\n");

  KillMember("coordinator");
  KillMember("ps-0");
  EXPECT_EQ(Muster("local up --workers 2").output, up.output) << "the address changed";
  EXPECT_EQ(Muster("submit examples/linear.yaml --wait -o name").output, "linear-1\n");

  const Outcome whole = Muster("local up 2>&1");
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_THAT(whole.output, Not(HasSubstr("started again")));
  EXPECT_EQ(Muster("local down").exit_code, 0);
}

TEST(MusterTest, RunRefusesMoreWorkersThanLogicalOnes) {
  const Outcome run =
      Muster(absl::StrCat("run examples/linear.yaml --workers 5 --dir ", Folder("run"), " 2>&1"));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.output,
              HasSubstr("examples/linear.yaml:19: resources.workers.logical: must be at "
                        "least max = 5 (is 4)"));
}

TEST(MusterTest, ChaosKillsMembersAndTheModelIsIdentical) {
  const Outcome chaos = Muster(absl::StrCat(
      "chaos examples/linear.yaml --set resources.workers.min=2 --set training.epochs=500 --roles ",
      "worker,coordinator --kill-every 200ms --for 2s --seed 7 -o json --dir ", Folder("chaos")));

  EXPECT_EQ(chaos.exit_code, 0) << chaos.output;
  EXPECT_THAT(chaos.output, HasSubstr("\"identical\": true"));
  EXPECT_THAT(chaos.output, HasSubstr("\"member\": \""));
  EXPECT_THAT(chaos.output, HasSubstr("\"fault\": \"\""));
}

// A perceptron, because linear regression converges to the same bits whatever the order of its
// sums.
TEST(MusterTest, ChaosScalesAnElasticJobAndTheModelIsIdentical) {
  const Outcome chaos = Muster(absl::StrCat(
      "chaos examples/mnist_mlp.yaml --set training.steps=3000 --roles scale --kill-every 300ms ",
      "--for 5s -o json --dir ", Folder("scaled")));

  EXPECT_EQ(chaos.exit_code, 0) << chaos.output;
  EXPECT_THAT(chaos.output, HasSubstr("\"member\": \"scale to 1 worker\""));
  EXPECT_THAT(chaos.output, HasSubstr("\"identical\": true"));
  EXPECT_THAT(chaos.output, HasSubstr("\"fault\": \"\""));
}

TEST(MusterTest, ChaosFailsWithTheJob) {
  const Outcome chaos = Muster(absl::StrCat(
      "chaos examples/linear.yaml --set training.epochs=30000 --set restart.max_restarts=0 ",
      "--roles worker --kill-every 100ms --no-compare --dir ", Folder("failing"), " 2>&1"));

  EXPECT_EQ(chaos.exit_code, 1);
  EXPECT_THAT(chaos.output, HasSubstr("linear-1 is FAILED: MEMBER_LOST: worker-"));
}

TEST(MusterTest, ChaosRefusesRunsThatProveNothing) {
  const std::string linear = "chaos examples/linear.yaml ";
  EXPECT_EQ(Muster("chaos 2>&1").exit_code, 2);
  EXPECT_EQ(Muster("chaos --job linear-1 --compare 2>&1").exit_code, 2);
  EXPECT_EQ(Muster(linear + "--roles ps,king 2>&1").exit_code, 2);
  const Outcome fixed = Muster(linear + "--workers 2 --roles scale 2>&1");
  EXPECT_EQ(fixed.exit_code, 2);
  EXPECT_THAT(fixed.output, HasSubstr("remove --workers, or give resources.workers.max above min"));
  EXPECT_EQ(Muster(linear + "--kill-every soon 2>&1").exit_code, 2);
  EXPECT_EQ(Muster(linear + "--signal STOP --stop-for 2m 2>&1").exit_code, 2);
  const Outcome peaceful =
      Muster(absl::StrCat(linear, "--no-compare --dir ", Folder("peaceful"), " 2>&1"));
  EXPECT_EQ(peaceful.exit_code, 6);
  EXPECT_THAT(peaceful.output, HasSubstr("ended before the first strike"));
}

}  // namespace
}  // namespace muster::cli::muster_test
