#include "cli/local/job_cluster.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/local/job_check.h"
#include "lib/concurrency/cpu_quota.h"
#include "lib/engine/backends/device_list.h"
#include "lib/job/path_rules.h"
#include "lib/plan/worker_devices.h"
#include "lib/status/status.h"

namespace muster::cli {
namespace {

constexpr char kRunsFolder[] = "muster-runs";

// Makes a new folder below the working directory, "muster-runs/linear-3", and returns its path.
absl::StatusOr<std::string> FolderFor(const std::string& job) {
  std::error_code error;
  std::filesystem::create_directories(kRunsFolder, error);
  for (int number = 1; !error; ++number) {
    const std::string folder = absl::StrCat(kRunsFolder, "/", job, "-", number);
    if (std::filesystem::create_directory(folder, error)) return folder;
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot make a folder in ./", kRunsFolder, ": ",
                                                 error.message(),
                                                 "; choose another one with --dir"));
}

absl::Status CheckDevices(const v1::ResourceSpec& resources, const std::string& devices) {
  const int degree = resources.tensor_parallel();
  if (degree <= 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<std::string> list,
                   ParseDeviceList(DevicesFor(resources, devices)));
  if (CanShareModel({list.begin(), list.end()}, degree)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--devices ", devices, ": resources.tensor_parallel is ", degree,
                   ", which needs a multiple of ", degree, " CPU devices, or ", degree, " GPUs"));
}

absl::Status CheckNothingRunsIn(const std::string& dir) {
  const auto other = LocalCluster::Open(dir);
  if (absl::IsNotFound(other.status())) return absl::OkStatus();
  RETURN_IF_ERROR(other.status());
  if (!(*other)->any_running()) return absl::OkStatus();
  return WithReason(absl::AlreadyExistsError(absl::StrCat(
                        "a local cluster runs in ", dir, " already; use another folder (--dir), ",
                        "or stop it: ", LocalCommand("down", dir))),
                    "ALREADY_RUNNING");
}

}  // namespace

absl::StatusOr<v1::JobSpec> ReadJob(const JobClusterOptions& options) {
  ASSIGN_OR_RETURN(JobOverrides overrides, ParseOverrides(options.settings));
  if (options.ps > 0) overrides.emplace_back("resources.ps", absl::StrCat(options.ps));
  if (options.workers > 0) {
    overrides.emplace_back("resources.workers.min", absl::StrCat(options.workers));
    overrides.emplace_back("resources.workers.max", absl::StrCat(options.workers));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadJobFile(options.file));
  ASSIGN_OR_RETURN(CheckedJob checked, CheckJobFile(text, options.file, overrides));
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  if (!error) MakePathsAbsolute(checked.spec, here);
  return std::move(checked.spec);  // drops the warnings: the coordinator repeats them
}

std::string ShellWord(absl::string_view word) {
  const auto is_plain = [](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("_-./:=,@%+", c);
  };
  if (!word.empty() && std::ranges::all_of(word, is_plain)) return std::string(word);
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string ArgumentsToResume(const JobClusterOptions& options, const std::string& checkpoint) {
  constexpr absl::string_view kResume = "checkpoint.resume_from=";
  std::string arguments = ShellWord(options.file);
  const auto add = [&arguments](absl::string_view option, absl::string_view value) {
    absl::StrAppend(&arguments, " ", option, " ", ShellWord(value));
  };
  for (const std::string& setting : options.settings) {
    if (!absl::StartsWith(setting, kResume)) add("--set", setting);
  }
  if (!options.dir.empty()) add("--dir", options.dir);
  if (options.ps > 0) add("--ps", absl::StrCat(options.ps));
  if (options.workers > 0) add("--workers", absl::StrCat(options.workers));
  if (options.devices != JobClusterOptions().devices) add("--devices", options.devices);
  if (options.threads > 0) add("--threads", absl::StrCat(options.threads));
  // It comes last: a setting replaces what an earlier one says.
  add("--set", absl::StrCat(kResume, checkpoint));
  return arguments;
}

absl::StatusOr<JobCluster> StartOwnCluster(LocalCluster::Options options, const std::string& name,
                                           const std::string& purpose) {
  if (options.dir.empty()) {
    ASSIGN_OR_RETURN(options.dir, FolderFor(name));
  }
  JobCluster own;
  ASSIGN_OR_RETURN(own.lock, ClusterLock::Take(options.dir, purpose));
  // Checked under the lock, so that no other program starts a cluster in between.
  RETURN_IF_ERROR(CheckNothingRunsIn(options.dir));
  ASSIGN_OR_RETURN(own.cluster, LocalCluster::Start(options));
  return own;
}

int ThreadsFor(const v1::ResourceSpec& resources, int cores) {
  const v1::WorkerCount& workers = resources.workers();
  const int shares = std::max({1, workers.min(), workers.max(), workers.logical()}) *
                     std::max(1, resources.tensor_parallel());
  return std::max(1, (cores - 1) / shares);
}

std::string DevicesFor(const v1::ResourceSpec& resources, const std::string& devices) {
  const int degree = resources.tensor_parallel();
  if (degree <= 1 || devices != JobClusterOptions().devices) return devices;
  return absl::StrCat("cpu:", degree);
}

absl::StatusOr<JobCluster> StartClusterFor(const v1::JobSpec& spec,
                                           const JobClusterOptions& options,
                                           const std::string& purpose) {
  const v1::WorkerCount& workers = spec.resources().workers();
  RETURN_IF_ERROR(CheckDevices(spec.resources(), options.devices));
  return StartOwnCluster(
      {.dir = options.dir,
       .ps = spec.sync().mode() == v1::ALLREDUCE ? 0 : std::max(1, spec.resources().ps()),
       .workers = std::max({1, workers.min(), workers.max()}),
       .devices = DevicesFor(spec.resources(), options.devices),
       .threads_per_device =
           options.threads > 0 ? options.threads : ThreadsFor(spec.resources(), UsableCpus())},
      spec.name(), purpose);
}

}  // namespace muster::cli
