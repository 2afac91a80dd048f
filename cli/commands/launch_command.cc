// Implements muster launch: runs a training program beside each worker of its own cluster.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/commands/session.h"
#include "cli/framework/coordinator_client.h"
#include "cli/framework/exit_code.h"
#include "cli/local/job_cluster.h"
#include "cli/local/local_cluster.h"
#include "cli/text/job_text.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/concurrency/steady_wait.h"
#include "lib/job/resource_name.h"
#include "lib/program/program_group.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

// How often the launcher looks for daemons that have ended.
constexpr absl::Duration kDaemonPollInterval = absl::Milliseconds(500);
// The other programs report their own errors in this time after the first failure.
constexpr absl::Duration kAfterFailure = absl::Seconds(2);
constexpr absl::Duration kProgramGrace = absl::Seconds(5);
// The exit code of muster.Suspended if the job was cancelled or failed: another program has the
// cause.
constexpr int kJobEndedCode = 8;
// The job learns its end within this time after its programs.
constexpr absl::Duration kSettleTimeout = absl::Seconds(10);
constexpr absl::Duration kLastCheckpointTimeout = absl::Minutes(10);

struct LaunchOptions {
  std::vector<std::string> command;
  int workers = 1;
  int ps = 1;
  int local_processes = 1;
  int restarts = 3;
  std::string out;

  int programs() const { return workers * local_processes; }
};

std::string WorkerName(int worker) { return absl::StrCat("worker-", worker); }

// "worker-1", or "worker-1/0" if each worker has several processes.
std::string ProgramName(const LaunchOptions& options, int worker, int process) {
  return options.local_processes == 1 ? WorkerName(worker)
                                      : absl::StrCat(WorkerName(worker), "/", process);
}

void Say(const std::string& text) { std::fprintf(stderr, "muster: %s\n", text.c_str()); }

// Writes the lines of all programs to the terminal and to one file for each process. Thread-safe.
class LaunchOutput {
 public:
  static absl::StatusOr<std::unique_ptr<LaunchOutput>> Create(const LaunchOptions& options,
                                                              const std::string& folder) {
    std::unique_ptr<LaunchOutput> output(new LaunchOutput);
    RETURN_IF_ERROR(output->Open(options, folder));
    return output;
  }

  absl::Status Open(const LaunchOptions& options, const std::string& folder)
      ABSL_LOCKS_EXCLUDED(mu_) {
    std::error_code error;
    fs::create_directories(folder, error);
    absl::MutexLock lock(&mu_);
    for (int i = 0; i < options.programs(); ++i) {
      const int worker = i / options.local_processes, process = i % options.local_processes;
      std::string name = ProgramName(options, worker, process);
      if (options.programs() > 1) prefixes_[{worker, process}] = "[" + name + "] ";
      std::replace(name.begin(), name.end(), '/', '-');
      const std::string path = absl::StrCat(folder, "/", name, ".log");
      std::ofstream& file = files_[{worker, process}];
      file.open(path, std::ios::app);
      if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot write"));
    }
    return absl::OkStatus();
  }

  void Take(int worker, int process, OutputStream stream, absl::string_view line)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    std::FILE* const terminal = stream == OutputStream::kStdout ? stdout : stderr;
    std::string text = absl::StrCat(prefixes_[{worker, process}], line);
    // Another program may write the next line.
    const bool has_end = absl::EndsWith(line, "\n") || absl::EndsWith(line, "\r");
    if (!has_end && !prefixes_.empty()) text += "\n";
    std::fputs(text.c_str(), terminal);
    std::fflush(terminal);
    files_[{worker, process}] << line << std::flush;
  }

 private:
  using Place = std::pair<int, int>;  // worker, process

  LaunchOutput() = default;

  absl::Mutex mu_;
  std::map<Place, std::string> prefixes_ ABSL_GUARDED_BY(mu_);  // empty with a single program
  std::map<Place, std::ofstream> files_ ABSL_GUARDED_BY(mu_);
};

// Runs the programs of one launch on a cluster that is up. Used by one thread.
class Launch {
 public:
  struct Failure {
    int worker;
    ProgramGroup::Outcome outcome;
  };

  Launch(const LaunchOptions& options, LocalCluster& cluster, Session& session)
      : options_(options), cluster_(cluster), session_(session), programs_(options.workers) {}

  // Blocks until all programs have succeeded, one has failed for good, or a signal has come. All
  // programs have ended on return. Returns the first failure, if any.
  // Returns UNAVAILABLE if a daemon ends too often, or the errors of ProgramGroup::Start().
  absl::StatusOr<std::optional<Failure>> Run() {
    ASSIGN_OR_RETURN(output_, LaunchOutput::Create(options_, cluster_.dir() + "/programs"));
    ASSIGN_OR_RETURN(common_, CommonEnvironment());
    Interrupt::Registration at_signal(*session_.interrupt, [this] { Wake(); });
    absl::StatusOr<std::optional<Failure>> failure = Follow();
    if (session_.SignalExitCode() != 0) {
      SignalAll(SIGINT);
    } else if (failure.ok() && failure->has_value()) {
      Say(absl::StrCat(NameOf(**failure), " ", (**failure).outcome.end.ToString(),
                       "; the other programs get 2 s, then SIGTERM"));
    }
    const absl::Duration own_end = session_.SignalExitCode() != 0 ? kProgramGrace : kAfterFailure;
    const bool all_ended = AwaitAll(own_end);
    if (failure.ok() && failure->has_value()) failure = CauseOf(**failure);
    if (!all_ended) SignalAll(SIGTERM);
    AwaitAll(kProgramGrace);
    programs_.clear();  // kills what still runs
    return failure;
  }

  std::string NameOf(const Failure& failure) const {
    return ProgramName(options_, failure.worker, failure.outcome.process);
  }

 private:
  struct Program {
    int restarts = 0;
    std::unique_ptr<ProgramGroup> group;
  };

  // Returns the failure of a program that failed by itself, if the job ended that of `first`.
  Failure CauseOf(const Failure& first) const {
    if (first.outcome.end.code != kJobEndedCode) return first;
    for (int worker = 0; worker < options_.workers; ++worker) {
      const std::optional<ProgramGroup::Outcome> outcome = programs_[worker].group->outcome();
      if (outcome && !outcome->end.ok() && outcome->end.code != kJobEndedCode) {
        return {worker, *outcome};
      }
    }
    return first;
  }

  absl::StatusOr<std::vector<std::string>> CommonEnvironment() const {
    std::string launch;
    std::ifstream("/proc/sys/kernel/random/uuid") >> launch;
    const std::string models = cluster_.dir() + "/model";
    std::error_code error;
    fs::create_directories(models, error);
    if (launch.empty() || error) {
      return absl::UnavailableError(
          absl::StrCat(models, ": cannot make the folder: ", error.message()));
    }
    std::vector<std::string> environment = {
        absl::StrCat("MUSTER_SERVER=", cluster_.address()),
        // The user's own coordinator may need these. The local one has neither TLS nor tokens.
        "MUSTER_TLS=", "MUSTER_TOKEN_FILE=", absl::StrCat("MUSTER_LAUNCH_ID=", launch),
        absl::StrCat("MUSTER_MODEL_DIR=", models),
        absl::StrCat("MUSTER_WORKERS=", options_.workers), "MUSTER_SUBMIT=0"};
    if (std::getenv("OMP_NUM_THREADS") == nullptr) {
      const int threads = std::max(1, UsableCpus() / options_.programs());
      environment.push_back(absl::StrCat("OMP_NUM_THREADS=", threads));
    }
    return environment;
  }

  absl::Status Start(int worker) {
    ProgramGroup::Options options = {
        .command = options_.command, .environment = common_, .processes = options_.local_processes};
    options.environment.push_back(
        absl::StrCat("MUSTER_PROGRAM_SOCKET=", cluster_.program_socket(WorkerName(worker))));
    if (worker == 0) options.first_environment.push_back("MUSTER_SUBMIT=1");
    options.on_line = [this, worker](int process, OutputStream stream, absl::string_view line) {
      output_->Take(worker, process, stream, line);
    };
    options.on_outcome = [this, worker] {
      absl::MutexLock lock(&mu_);
      ended_.push_back(worker);
      has_news_ = true;
    };
    ASSIGN_OR_RETURN(programs_[worker].group, ProgramGroup::Start(std::move(options)));
    return absl::OkStatus();
  }

  // Starts the programs. Blocks until the launch must end.
  absl::StatusOr<std::optional<Failure>> Follow() {
    for (int worker = 0; worker < options_.workers; ++worker) RETURN_IF_ERROR(Start(worker));
    int succeeded = 0;
    while (succeeded < options_.workers && session_.SignalExitCode() == 0) {
      for (const int worker : AwaitNews()) {
        const std::optional<ProgramGroup::Outcome> outcome = programs_[worker].group->outcome();
        if (outcome->end.ok()) {
          ++succeeded;
        } else if (session_.SignalExitCode() == 0) {
          ASSIGN_OR_RETURN(const bool restarted, Restart(worker, *outcome));
          if (!restarted) return Failure{worker, *outcome};
        }
      }
      RETURN_IF_ERROR(HealDaemons());
    }
    return std::nullopt;
  }

  // Starts the program of a worker again if a signal has killed it, but not more often than the
  // options allow. Returns whether it runs again.
  absl::StatusOr<bool> Restart(int worker, const ProgramGroup::Outcome& outcome) {
    Program& program = programs_[worker];
    if (outcome.end.signal == 0 || program.restarts == options_.restarts) return false;
    ++program.restarts;
    Say(absl::StrCat(NameOf({worker, outcome}), " ", outcome.end.ToString(), "; restart ",
                     program.restarts, " of ", options_.restarts));
    // The other processes of the worker wait for the one that is gone, so all of them begin again.
    program.group->Stop(kProgramGrace);
    RETURN_IF_ERROR(Start(worker));
    return true;
  }

  absl::Status HealDaemons() {
    bool all_run = true;
    for (const std::string& name : cluster_.names()) {
      if (cluster_.running(name)) continue;
      all_run = false;
      if (++daemon_ends_[name] <= options_.restarts) continue;
      return absl::UnavailableError(absl::StrCat(name, " has ended, after ", options_.restarts,
                                                 " restarts; see ", cluster_.log_path(name)));
    }
    if (all_run) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<LocalCluster::Revival> revivals, cluster_.Heal());
    for (const LocalCluster::Revival& revival : revivals) {
      Say(absl::StrCat(revival.name, " ", revival.end, "; restart ", daemon_ends_[revival.name],
                       " of ", options_.restarts, "; its log: ", cluster_.log_path(revival.name)));
    }
    return absl::OkStatus();
  }

  void Wake() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    has_news_ = true;
  }

  // Blocks until a program ends or a signal comes, for at most the poll interval. Returns their
  // workers, in the order of the ends.
  std::deque<int> AwaitNews() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    AwaitFor(&mu_, absl::Condition(&has_news_), kDaemonPollInterval);
    has_news_ = false;
    return std::exchange(ended_, {});
  }

  void SignalAll(int signal) {
    for (const Program& program : programs_) {
      if (program.group != nullptr) program.group->Signal(signal);
    }
  }

  bool AwaitAll(absl::Duration timeout) const {
    const absl::Duration deadline = SteadyNow() + timeout;
    return std::ranges::all_of(programs_, [deadline](const Program& program) {
      return program.group == nullptr || program.group->AwaitEnd(deadline - SteadyNow());
    });
  }

  const LaunchOptions& options_;
  LocalCluster& cluster_;
  Session& session_;
  std::unique_ptr<LaunchOutput> output_;
  std::vector<std::string> common_;  // variables of all programs
  std::map<std::string, int> daemon_ends_;
  absl::Mutex mu_;
  bool has_news_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<int> ended_ ABSL_GUARDED_BY(mu_);  // workers, in the order of their ends
  std::vector<Program> programs_;               // last: their threads use the others
};

// Returns the jobs of the cluster, without their specs.
absl::StatusOr<std::vector<v1::Job>> ListJobs(CoordinatorClient& client) {
  v1::ListJobsRequest request;
  request.set_view(v1::JOB_VIEW_BASIC);
  ASSIGN_OR_RETURN(const v1::ListJobsResponse list, client.ListJobs(request));
  return std::vector<v1::Job>(list.jobs().begin(), list.jobs().end());
}

// A job that has not ended would take the workers, and the programs would train it.
absl::Status CheckAllEnded(const std::vector<v1::Job>& jobs, const LocalCluster& cluster) {
  for (const v1::Job& job : jobs) {
    if (IsTerminal(job.state()) || job.state() == v1::SUSPENDED) continue;
    return absl::FailedPreconditionError(absl::StrCat(JobIdOf(job.name()), " in ", cluster.dir(),
                                                      " is ", v1::JobState_Name(job.state()),
                                                      "; use another folder (--out)"));
  }
  return absl::OkStatus();
}

// Blocks until the job has ended or is suspended, after its programs have ended. Returns at once if
// they ended before its last step.
v1::Job AwaitJob(CoordinatorClient& client, v1::Job job, Session& session) {
  const auto is_over = [&job] { return IsTerminal(job.state()) || job.state() == v1::SUSPENDED; };
  const auto watch = [&](absl::Duration timeout) {
    client
        .Watch(JobIdOf(job.name()),
               {.deadline = absl::Now() + timeout, .interrupt = session.interrupt},
               [&](const v1::WatchJobResponse& update) {
                 job = update.job();
                 return is_over() ? CoordinatorClient::WatchStep::kStop
                                  : CoordinatorClient::WatchStep::kContinue;
               })
        .IgnoreError();  // the state that arrived is printed in any case
  };
  watch(kSettleTimeout);
  const v1::JobProgress& progress = job.progress();
  const bool made_all = progress.total_steps() > 0 && progress.step() >= progress.total_steps();
  if (!is_over() && made_all) watch(kLastCheckpointTimeout);
  return job;
}

// Prints the result of the job and the folder of its newest checkpoint.
void PrintOutcome(CoordinatorClient& client, const v1::Job& job) {
  std::string directory;
  if (!job.checkpoint().empty()) {
    const auto checkpoint = client.GetCheckpoint(job.checkpoint());
    if (checkpoint.ok()) directory = checkpoint->directory();
  }
  std::fputs(JobSummary(job, directory).c_str(), stderr);
  if (!TrainedWell(job) && !job.reason().empty()) {
    Say(absl::StrCat(job.reason(), ": ", job.message()));
  }
}

absl::Status RunLaunch(const LaunchOptions& options, Session& session) {
  // A registration keeps a signal from ending this process at once. The programs and the cluster
  // must end first.
  Interrupt::Registration registration(*session.interrupt, [] {});
  ASSIGN_OR_RETURN(const JobCluster own, StartOwnCluster({.dir = options.out,
                                                          .ps = options.ps,
                                                          .workers = options.workers,
                                                          .accept_programs = true},
                                                         "launch", "muster launch"));
  LocalCluster& cluster = *own.cluster;
  std::fprintf(stderr, "coordinator %s, output and state in %s\n", cluster.address().c_str(),
               cluster.dir().c_str());
  if (session.SignalExitCode() != 0) return absl::CancelledError("interrupted");
  CoordinatorClient client(cluster.address());
  ASSIGN_OR_RETURN(const std::vector<v1::Job> before, ListJobs(client));
  RETURN_IF_ERROR(CheckAllEnded(before, cluster));

  Launch launch(options, cluster, session);
  ASSIGN_OR_RETURN(const std::optional<Launch::Failure> failure, launch.Run());

  const bool succeeded = session.SignalExitCode() == 0 && !failure.has_value();
  const absl::StatusOr<std::vector<v1::Job>> jobs = ListJobs(client);
  for (v1::Job job : jobs.value_or(std::vector<v1::Job>())) {
    const auto is_job = [&](const v1::Job& other) { return other.name() == job.name(); };
    if (std::ranges::any_of(before, is_job)) continue;
    if (succeeded) job = AwaitJob(client, std::move(job), session);
    PrintOutcome(client, job);
    if (!succeeded) continue;
    if (!IsTerminal(job.state())) {
      Say(absl::StrCat("all programs have ended, and ", job.name(),
                       " has not; they must take every batch of the loader"));
    }
    if (!IsTerminal(job.state()) || !TrainedWell(job)) session.exit_code = kExitJobFailed;
  }
  if (session.SignalExitCode() != 0) {
    session.exit_code = session.SignalExitCode();
  } else if (failure.has_value()) {
    Say(absl::StrCat(launch.NameOf(*failure), " ", failure->outcome.end.ToString(),
                     "; the end of its standard error:"));
    std::fputs(failure->outcome.errors.c_str(), stderr);
    const int code = failure->outcome.end.ShellCode();
    session.exit_code = code == kJobEndedCode ? kExitJobFailed : code;
  }
  return absl::OkStatus();
}

}  // namespace

void AddLaunchCommand(Command program, Session& session) {
  auto options = std::make_shared<LaunchOptions>();
  Command launch =
      program.AddCommand("launch", "Run a training program beside each worker of its own cluster",
                         "muster launch --workers 2 -- python3 train.py --epochs 3");
  launch.AddOption("COMMAND", options->command, "The program and its arguments, after --")
      .Required();
  launch.AddOption("--workers", options->workers, "Workers; default: 1").Within(1, 64);
  launch.AddOption("--ps", options->ps, "Parameter servers; default: 1").Within(1, 64);
  launch
      .AddOption("--local-processes", options->local_processes,
                 "Programs of each worker, one per GPU; default: 1")
      .Within(1, 64);
  launch.AddOption("--restarts", options->restarts, "After a signal, for each worker; default: 3")
      .Within(0, 1000);
  launch.AddOption("--out,--dir", options->out, "Output, logs; default: ./muster-runs/launch-N");
  launch.SetAction([options, &session] { session.Fail(RunLaunch(*options, session)); });
}

}  // namespace muster::cli
