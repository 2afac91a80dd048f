// The `muster` command as a user runs it: output, messages and exit codes with a real cluster.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster::command_line_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Runs `muster` with these arguments, which a shell splits and expands.
Outcome Muster(const std::string& arguments, const std::string& environment = "") {
  const std::string base = absl::StrCat(::testing::TempDir(), "/muster.", getpid());
  const std::string command = absl::StrCat("env ", environment, " cli/muster ", arguments, " >",
                                           base, ".out 2>", base, ".err </dev/null");
  const int status = system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), ReadAll(base + ".out"),
          ReadAll(base + ".err")};
}

class CommandLineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    cluster_ = new TrainingCluster({.ps = 1, .workers = 1, .ps_threads = 1});
  }
  static void TearDownTestSuite() { delete cluster_; }

  static Outcome OnCluster(const std::string& arguments) {
    return Muster(arguments, "MUSTER_SERVER=" + cluster_->members().address());
  }

  static TrainingCluster* cluster_;
};
TrainingCluster* CommandLineTest::cluster_ = nullptr;

TEST_F(CommandLineTest, AJobsWholeLife) {
  const Outcome submit =
      OnCluster("submit --wait -o name examples/linear.yaml --set name=cli-life");
  ASSERT_EQ(submit.exit_code, 0) << submit.err;
  EXPECT_THAT(submit.out, HasSubstr("cli-life-"));
  const std::string job =
      submit.out.substr(submit.out.find("cli-life-"),
                        submit.out.find_last_not_of('\n') + 1 - submit.out.find("cli-life-"));

  const Outcome get = OnCluster("get " + job + " -o json");
  ASSERT_EQ(get.exit_code, 0) << get.err;
  const auto record = nlohmann::json::parse(get.out, nullptr, false);
  ASSERT_TRUE(record.is_object()) << get.out;
  EXPECT_EQ(record["state"], "SUCCEEDED");

  const std::string again = absl::StrCat(::testing::TempDir(), "/again-", job, ".yaml");
  std::ofstream(again) << OnCluster("get " + job + " -o spec").out;
  const Outcome same = OnCluster("submit --wait -o name " + again);
  EXPECT_EQ(same.exit_code, 0) << same.err << ReadAll(again);

  EXPECT_THAT(OnCluster("list").out, HasSubstr(job));
  EXPECT_THAT(OnCluster("describe " + job).out, HasSubstr("CHECKPOINT_COMMITTED"));
  EXPECT_EQ(OnCluster("watch " + job).exit_code, 0);
  EXPECT_EQ(OnCluster("wait " + job + " --timeout 10s").exit_code, 0);
  EXPECT_THAT(OnCluster("checkpoint list " + job).out, HasSubstr(job));
  EXPECT_EQ(OnCluster("checkpoint verify " + job).exit_code, 0);

  const std::string copy = absl::StrCat(::testing::TempDir(), "/copy-", job);
  ASSERT_EQ(OnCluster("checkpoint get " + job + " " + copy).exit_code, 0);
  EXPECT_EQ(Muster("checkpoint verify " + copy).exit_code, 0);
  std::fstream file(copy + "/model-00001-of-00001.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.good());
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  const Outcome damaged = Muster("checkpoint verify " + copy);
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.err, HasSubstr("model-00001-of-00001.safetensors"));

  EXPECT_EQ(OnCluster("cancel " + job).exit_code, 6) << "a finished job cannot be cancelled";
  EXPECT_EQ(OnCluster("delete " + job).exit_code, 0);
  EXPECT_EQ(OnCluster("get " + job).exit_code, 3);
}

TEST_F(CommandLineTest, ValidateFindsWhatSubmitRefuses) {
  const Outcome submit =
      OnCluster("submit --wait -o name examples/linear.yaml --set name=cli-check");
  ASSERT_EQ(submit.exit_code, 0) << submit.err;
  const std::string job = submit.out.substr(0, submit.out.find('\n'));
  const std::string copy = absl::StrCat(::testing::TempDir(), "/check-", job);
  ASSERT_EQ(OnCluster("checkpoint get " + job + " " + copy).exit_code, 0);
  const std::string fits = " --set training.epochs=100 --set checkpoint.resume_from=";
  const std::string faults[] = {
      fits + copy + " --set 'training.optimizer={adam: {learning_rate: 0.1}}'",
      " --set training.steps=5 --set checkpoint.resume_from=" + copy,
      fits + copy + "-gone",
  };
  for (const std::string& fault : faults) {
    const Outcome refused = OnCluster("submit examples/linear.yaml" + fault);
    const Outcome asked = OnCluster("validate examples/linear.yaml" + fault);
    const Outcome alone =
        Muster("validate examples/linear.yaml" + fault, "MUSTER_SERVER=127.0.0.1:1");
    EXPECT_EQ(refused.exit_code, 2) << fault << refused.err;
    EXPECT_EQ(asked.exit_code, 2) << fault;
    EXPECT_EQ(asked.err, refused.err);
    EXPECT_EQ(alone.exit_code, 2) << fault << alone.err;
  }
  const Outcome good = OnCluster("validate examples/linear.yaml" + fits + copy);
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_THAT(good.err, Not(HasSubstr("not checked")));

  // The job to resume from does not exist, which only the coordinator can find. Without a
  // coordinator, `validate` says that it did not check this.
  EXPECT_EQ(OnCluster("validate examples/linear.yaml" + fits + "nobody-7").exit_code, 2);
  const Outcome alone =
      Muster("validate examples/linear.yaml" + fits + "nobody-7", "MUSTER_SERVER=127.0.0.1:1");
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.err,
              HasSubstr("not checked, because no coordinator answers at 127.0.0.1:1: whether it "
                        "may read the files (--data_roots), and the checkpoint nobody-7\n"));
}

TEST_F(CommandLineTest, SuspendAndResumeFromTheCommandLine) {
  const Outcome submit = OnCluster(
      "submit -o name examples/linear.yaml --set name=cli-suspend --set training.steps=1000000");
  ASSERT_EQ(submit.exit_code, 0) << submit.err;
  const std::string job =
      submit.out.substr(submit.out.find("cli-suspend-"),
                        submit.out.find_last_not_of('\n') + 1 - submit.out.find("cli-suspend-"));
  EXPECT_EQ(OnCluster("wait " + job + " --for RUNNING --timeout 30s").exit_code, 0);
  const Outcome suspended = OnCluster("suspend --wait " + job);
  EXPECT_EQ(suspended.exit_code, 0) << suspended.err;
  EXPECT_THAT(OnCluster("get " + job).out, HasSubstr("SUSPENDED"));
  EXPECT_EQ(OnCluster("resume " + job).exit_code, 0);
  EXPECT_EQ(OnCluster("wait " + job + " --for RUNNING --timeout 30s").exit_code, 0);
  EXPECT_EQ(OnCluster("wait " + job + " --timeout 1s").exit_code, 4);
  EXPECT_EQ(OnCluster("cancel " + job).exit_code, 0);
  EXPECT_EQ(OnCluster("wait " + job + " --timeout 30s").exit_code, 1) << "it did not succeed";
}

TEST_F(CommandLineTest, CheckpointDiffTellsWhichParametersAreApart) {
  const std::string linear = "examples/linear.yaml --set training.epochs=1 --set name=cli-diff ";
  const Outcome submit = OnCluster("submit --wait -o name " + linear +
                                   "--set checkpoint.every_steps=32 --set checkpoint.keep_last=0");
  ASSERT_EQ(submit.exit_code, 0) << submit.err;
  const std::string job = submit.out.substr(0, submit.out.find('\n'));

  const Outcome same = OnCluster("checkpoint diff " + job + "@32 " + job + "@32");
  EXPECT_EQ(same.exit_code, 0) << same.err;
  EXPECT_EQ(same.out, "the same values in 2 parameters\n");

  const Outcome apart = OnCluster("checkpoint diff " + job + "@32 " + job + "@64 -o json");
  EXPECT_EQ(apart.exit_code, 1) << apart.err;
  const auto report = nlohmann::json::parse(apart.out, nullptr, false);
  ASSERT_TRUE(report.is_object()) << apart.out;
  ASSERT_EQ(report["parameters"].size(), 2);
  for (const auto& parameter : report["parameters"]) {
    EXPECT_EQ(parameter["different"], 1) << "of one element, trained by 32 steps";
    EXPECT_GT(parameter["largest"], 0);
  }
  EXPECT_EQ(OnCluster("checkpoint diff " + job + "@32 " + job + "@33").exit_code, 3);
}

TEST_F(CommandLineTest, ScaleStopsAJobAtACheckpointAndItGoesOnAsItIsTold) {
  const Outcome submit = OnCluster(
      "submit -o name examples/linear.yaml --set name=cli-scale --set training.steps=1000000");
  ASSERT_EQ(submit.exit_code, 0) << submit.err;
  const std::string job = submit.out.substr(0, submit.out.find('\n'));
  ASSERT_EQ(OnCluster("wait " + job + " --for running --timeout 30s").exit_code, 0);

  const Outcome scaled = OnCluster("scale " + job + " --workers 1");
  EXPECT_EQ(scaled.exit_code, 0) << scaled.err;
  EXPECT_EQ(OnCluster("wait " + job + " --for running --timeout 30s").exit_code, 0);
  EXPECT_THAT(OnCluster("list").out, HasSubstr("1/1")) << "of at most two workers before";
  EXPECT_THAT(OnCluster("events " + job).out, HasSubstr("generation 2 on 1 workers"));
  EXPECT_EQ(OnCluster("cancel " + job).exit_code, 0);
}

TEST_F(CommandLineTest, ABackupIsRestoredIntoAnotherFolder) {
  const Outcome submit =
      OnCluster("submit --wait -o name examples/linear.yaml --set name=cli-backup");
  ASSERT_EQ(submit.exit_code, 0) << submit.err;
  const std::string job = submit.out.substr(0, submit.out.find('\n'));
  const std::string folder = absl::StrCat(::testing::TempDir(), "/backup.", getpid());
  const std::string file = folder + ".muster";

  const Outcome backup = OnCluster("admin backup " + file);
  ASSERT_EQ(backup.exit_code, 0) << backup.err;
  EXPECT_THAT(backup.out, HasSubstr("SHA-256"));
  const std::string dir = folder + "/state";
  const Outcome restored = Muster("admin restore " + file + " --state-dir " + dir);
  ASSERT_EQ(restored.exit_code, 0) << restored.err;
  EXPECT_EQ(Muster("admin restore " + file + " --state-dir " + dir).exit_code, 6)
      << "the store has jobs already";
  EXPECT_EQ(Muster("admin restore --flag --nonsense " + file + " --state-dir " + dir).exit_code, 2);
  EXPECT_EQ(Muster("admin restore /dev/null --force --state-dir " + dir).exit_code, 1) << "damaged";
  EXPECT_EQ(Muster("admin restore " + file + " --force --state-dir " + dir).exit_code, 0);

  // A cluster's state is in DIR/state. This cluster starts from the backup.
  ASSERT_EQ(Muster("local up --ps 1 --workers 1 --dir " + folder).exit_code, 0);
  const Outcome address = Muster("local status --dir " + folder);
  const std::string server = "MUSTER_SERVER=" + address.out.substr(0, address.out.find('\n'));
  const Outcome known = Muster("get " + job + " -o json", server);
  EXPECT_EQ(known.exit_code, 0) << known.err;
  EXPECT_THAT(known.out, HasSubstr("SUCCEEDED"));
  const Outcome next = Muster("submit --wait -o name examples/linear.yaml", server);
  EXPECT_EQ(next.exit_code, 0) << next.err;
  auto number = [](const std::string& id) {
    return std::stoi(id.substr(id.find_last_of('-') + 1));
  };
  EXPECT_GT(number(next.out), number(job)) << "numbers are not used twice";
  EXPECT_EQ(Muster("local down --dir " + folder).exit_code, 0);
}

TEST_F(CommandLineTest, ErrorsGoToStandardErrorWithTheirExitCodes) {
  const Outcome missing = OnCluster("get nothing-1");
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_EQ(missing.out, "");
  EXPECT_THAT(missing.err, HasSubstr("nothing-1"));

  EXPECT_EQ(OnCluster("frobnicate").exit_code, 2);
  EXPECT_EQ(OnCluster("submit no-such-file.yaml").exit_code, 2);
  const Outcome invalid = OnCluster("submit examples/linear.yaml --set training.stepz=3");
  EXPECT_EQ(invalid.exit_code, 2);
  EXPECT_THAT(invalid.err, HasSubstr("training.stepz"));

  const Outcome unreachable = Muster("list --server 127.0.0.1:1");
  EXPECT_EQ(unreachable.exit_code, 7);
  EXPECT_THAT(unreachable.err, HasSubstr("127.0.0.1:1"));
}

TEST_F(CommandLineTest, ListsMembersAndItsOwnVersion) {
  const Outcome members = OnCluster("members");
  EXPECT_EQ(members.exit_code, 0);
  EXPECT_THAT(members.out, HasSubstr("worker-0"));
  EXPECT_THAT(members.out, HasSubstr("ps-0"));
  EXPECT_TRUE(nlohmann::json::accept(OnCluster("members -o json").out));
  const auto version = nlohmann::json::parse(Muster("version -o json").out, nullptr, false);
  ASSERT_TRUE(version.is_object());
  for (const char* field : {"version", "commit", "build", "cuda", "compiler"})
    EXPECT_TRUE(version.contains(field)) << field;
  EXPECT_THAT(Muster("version").out,
              HasSubstr(absl::StrCat("muster ", version["version"].get<std::string>(), "\n")));
  EXPECT_EQ(Muster("--help").exit_code, 0);
  EXPECT_THAT(members.out, Not(HasSubstr("\x1b["))) << "colours only on a terminal";
}

// Events of a job of two workers and two ps, on one clock. All processes share the machine's clock,
// so no offset may exceed its stated uncertainty.
TEST(TraceCommandTest, ShowsAllMembersOfARunningJobOnOneClock) {
  TrainingCluster cluster({.ps = 2, .workers = 2, .ps_threads = 1});
  const std::string server = "MUSTER_SERVER=" + cluster.members().address();
  const std::string job = cluster.Submit(R"(
name: traced
model: {zoo: {name: mlp, args: {hidden: "64,64"}}}
data: {synthetic: {samples: 256}, batch_size: 32}
training: {steps: 1000000, optimizer: {sgd: {learning_rate: 0.01}}}
resources: {workers: {min: 2, max: 2}, ps: 2}
)");
  cluster.AwaitStep(job, 3);
  const std::string path = absl::StrCat(::testing::TempDir(), "/trace.", getpid(), ".json");
  const Outcome traced = Muster("trace " + job + " --steps 4 -o " + path, server);
  ASSERT_EQ(traced.exit_code, 0) << traced.err << cluster.Logs();
  EXPECT_EQ(traced.out, path + "\n");
  EXPECT_EQ(Muster("cancel " + job, server).exit_code, 0);
  const Outcome late = Muster("trace " + job + " -o " + path + ".late", server);
  EXPECT_EQ(late.exit_code, 6) << late.err;
  EXPECT_THAT(late.err, HasSubstr("JOB_NOT_RUNNING"));
  EXPECT_FALSE(std::ifstream(path + ".late").good()) << "no empty file is left";

  const auto trace = nlohmann::json::parse(ReadAll(path), nullptr, false);
  ASSERT_TRUE(trace.is_object());
  double uncertainty = 0;
  std::map<int, std::string> members;
  for (const auto& member : trace["otherData"]["members"]) {
    EXPECT_EQ(member["trouble"], "") << member;
    EXPECT_EQ(member["dropped"], 0) << member;
    const double of_clock = member["clock_uncertainty_nanos"];
    EXPECT_LE(std::abs(member["clock_offset_nanos"].get<double>()), of_clock) << member;
    uncertainty = std::max(uncertainty, of_clock / 1000);
    members[member["pid"]] = member["member"];
  }
  EXPECT_EQ(members.size(), 4);
  const int64_t first = trace["otherData"]["first_step"], end = trace["otherData"]["end_step"];
  EXPECT_GE(end - first, 4);

  struct Span {
    double begin, end;
  };
  std::map<std::string, std::map<std::string, int>> counts;  // by member, by name
  std::map<std::pair<int, int>, std::vector<Span>> open;     // by track: nested, the innermost last
  std::map<int64_t, std::map<int, Span>> steps;              // by step, by worker
  std::map<std::string, int> lives;
  for (const auto& event : trace["traceEvents"]) {
    for (const char* field : {"ph", "ts", "pid", "tid", "name"}) {
      ASSERT_TRUE(event.contains(field)) << field << ": " << event;
    }
    const std::string phase = event["ph"], name = event["name"];
    if (event["pid"] == 1 || phase == "M" || phase == "C") continue;
    ++counts[members[event["pid"]]][name];
    ASSERT_GE(event["args"]["step"].get<int64_t>(), first) << event;
    ASSERT_LT(event["args"]["step"].get<int64_t>(), end) << event;
    if (phase == "b") ++lives[event["id"]];
    if (phase != "X") continue;
    const double begin = event["ts"];
    const Span span{begin, begin + event["dur"].get<double>()};
    auto& holding = open[{event["pid"], event["tid"]}];
    while (!holding.empty() && holding.back().end <= span.begin + 0.001) holding.pop_back();
    if (!holding.empty()) {
      ASSERT_LE(span.end, holding.back().end + 0.001) << event;
    }
    holding.push_back(span);
    if (name == "step") steps[event["args"]["step"]][event["pid"]] = span;
  }
  for (const char* worker : {"worker-0", "worker-1"}) {
    for (const char* name : {"step", "wait for data", "compute", "forward", "backward"}) {
      EXPECT_GE(counts[worker][name], 4) << worker << ", " << name;
    }
    EXPECT_GT(counts[worker]["chunk"], 0) << worker;
  }
  for (const char* ps : {"ps-0", "ps-1"}) {
    for (const char* name : {"push", "update", "answer", "gather", "arrived"}) {
      EXPECT_GT(counts[ps][name], 0) << ps << ", " << name;
    }
  }
  for (const auto& [id, begins] : lives) EXPECT_EQ(begins, 1) << "two lives of " << id;
  // No worker is a step ahead of the other. Step s + 1 of one worker needs the other's gradient of
  // step s, so it ends only after the other has begun step s. (On a busy machine it may end before
  // the other begins step s + 1.)
  int compared = 0;
  for (const auto& [step, of_workers] : steps) {
    const auto after = steps.find(step + 1);
    if (after == steps.end()) continue;
    for (const auto& [worker, span] : of_workers) {
      for (const auto& [other, next] : after->second) {
        if (other == worker) continue;
        EXPECT_LT(span.begin, next.end + 2 * uncertainty) << step;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 2);
}

TEST(RunCommandTest, TrainsWithoutAClusterAndLeavesNoProcessBehind) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/run.", getpid());
  const Outcome run = Muster("run examples/char_gpt.yaml --dir " + dir +
                             " --set training.steps=30 --set training.evaluate_every_steps=0 --set "
                             "training.schedule.warmup_steps=5 --set model.zoo.args.layers=1"
                             " --set model.zoo.args.channels=32");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const std::string text = run.out + run.err;
  for (const char* part : {"SUCCEEDED", "loss", "checkpoint", "/metrics"})
    EXPECT_THAT(text, HasSubstr(part));
  // "[/]" keeps pgrep from matching the shell that runs it.
  EXPECT_NE(system(absl::StrCat("pgrep -f '[/]", dir.substr(1), "' >/dev/null").c_str()), 0)
      << "a process of the run is left";
}

// Returns the number after `phrase` in `text`, or -1 if `text` does not have the phrase.
int64_t StepAfter(const std::string& text, const std::string& phrase) {
  const size_t at = text.find(phrase);
  return at == std::string::npos ? -1 : std::atoll(text.c_str() + at + phrase.size());
}

constexpr char kLongJob[] =
    "examples/char_gpt.yaml --set training.steps=1000000 --set model.zoo.args.layers=1 "
    "--set model.zoo.args.channels=32 --set resources.workers.max=1 --set resources.ps=1 "
    "--set checkpoint.every_steps=0";

TEST(RunCommandTest, InterruptedItSavesTheJobAndSaysHowToGoOn) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/interrupted.", getpid());
  const std::string command = absl::StrCat("run ", kLongJob, " --dir ", dir);
  // The signal comes after the first step, which the coordinator records in its log of steps.
  const std::string log = dir + "/state/jobs/char-gpt-1/metrics.jsonl";
  const std::string run = absl::StrCat("cli/muster ", command, " >", dir, ".out 2>&1 </dev/null");
  ASSERT_EQ(system(absl::StrCat("sh -c '", run, " & ", "until [ -s ", log, " ]; do kill -0 $! || ",
                                "exit 9; done; kill -INT $!; wait $!'")
                       .c_str()) >>
                8,
            130)
      << ReadAll(dir + ".out");
  const std::string text = ReadAll(dir + ".out");
  const int64_t step = StepAfter(text, "interrupted at step ");
  EXPECT_GT(step, 0) << text;
  const std::string path = text.substr(text.find("checkpoint.resume_from=") + 23);
  const Outcome resumed =
      Muster(absl::StrCat(command, "-2 --set training.steps=", step + 200,
                          " --set training.evaluate_every_steps=0 --set checkpoint.resume_from=",
                          path.substr(0, path.find('\n'))));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr(absl::StrCat(step + 200, " steps")));
}

TEST(LocalCommandTest, DownSavesTheJobThatRunsAndUpGoesOnFromThere) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/saved.", getpid());
  const Outcome up = Muster("local up --ps 1 --workers 1 --dir " + dir);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  const auto on_it = [](const Outcome& up) {
    return "MUSTER_SERVER=" + up.out.substr(0, up.out.find('\n'));
  };
  ASSERT_EQ(Muster(absl::StrCat("submit ", kLongJob), on_it(up)).exit_code, 0);
  const std::string log = dir + "/state/jobs/char-gpt-1/metrics.jsonl";
  ASSERT_EQ(system(absl::StrCat("until [ -s ", log, " ]; do :; done").c_str()), 0);

  const Outcome down = Muster("local down --dir " + dir);
  EXPECT_EQ(down.exit_code, 0) << down.err;
  EXPECT_THAT(down.err, HasSubstr("char-gpt-1 is RUNNING at step "));
  const int64_t saved = StepAfter(down.err, "char-gpt-1 is saved at step ");
  EXPECT_GT(saved, 0) << down.err;

  const Outcome again = Muster("local up --dir " + dir);
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto page_of = [](const Outcome& up) {
    return up.err.substr(up.err.find("Status page: "));
  };
  EXPECT_EQ(page_of(again), page_of(up)) << "a browser's tab finds it again";
  // The job continues in its second generation.
  Outcome events;
  const absl::Time end = absl::Now() + absl::Minutes(1);
  while (!absl::StrContains(events.out, "generation 2 on") && absl::Now() < end) {
    events = Muster("events char-gpt-1", on_it(again));
  }
  EXPECT_EQ(StepAfter(events.out, "generation 2 on 1 workers (4 logical: 4) and 1 ps, from step "),
            saved)
      << events.out << events.err;
  EXPECT_EQ(Muster("local down --dir " + dir).exit_code, 0);
}

TEST(LocalCommandTest, UpStatusDown) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/up.", getpid());
  const Outcome up = Muster("local up --dir " + dir);
  ASSERT_EQ(up.exit_code, 0) << up.err;
  EXPECT_THAT(up.out + up.err, HasSubstr("127.0.0.1:"));
  EXPECT_THAT(up.err, HasSubstr("\n  muster local down --dir " + dir + "\n"));
  const Outcome status = Muster("local status --dir " + dir);
  EXPECT_EQ(status.exit_code, 0);
  // The width of columns depends on the process ids.
  std::string rows = std::regex_replace(status.out, std::regex(" +"), " ");
  rows = std::regex_replace(rows, std::regex("127.0.0.1:[0-9]+"), "ADDRESS");
  rows = std::regex_replace(rows, std::regex("running [0-9]+"), "running PID");
  rows = std::regex_replace(rows, std::regex("/[^ ]*/up[.][0-9]+/"), "DIR/");
  EXPECT_EQ(rows,
            "ADDRESS\n"
            "NAME STATE PID LOG\n"
            "coordinator running PID DIR/logs/coordinator.log\n"
            "ps-0 running PID DIR/logs/ps-0.log\n"
            "ps-1 running PID DIR/logs/ps-1.log\n"
            "worker-0 running PID DIR/logs/worker-0.log\n"
            "worker-1 running PID DIR/logs/worker-1.log\n");
  EXPECT_EQ(Muster("local down --dir " + dir).exit_code, 0);
  EXPECT_NE(Muster("local status --dir " + dir).exit_code, 0);
}

}  // namespace
}  // namespace muster::command_line_test
