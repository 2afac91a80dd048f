#include "cli/commands/sync_bench.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/commands/bench_worker.h"
#include "cli/framework/coordinator_client.h"
#include "cli/local/local_cluster.h"
#include "cli/local/process.h"
#include "cli/text/output.h"
#include "google/protobuf/struct.pb.h"
#include "lib/concurrency/poll_budget.h"
#include "lib/job/resource_name.h"
#include "lib/limits/limits.h"
#include "lib/program/program_path.h"
#include "lib/status/status.h"
#include "lib/transport/routing/routing_transport.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTensorsBytes = 8 << 20;  // of all tensors together, within the bounds below
constexpr int64_t kTensorsMin = 2;
constexpr int64_t kTensorsMax = 64;
constexpr int64_t kRoundBytesMin = 64 << 20;
constexpr int64_t kRoundBytesMax = 256 << 20;
constexpr int64_t kRoundMessages = 16384;  // messages of a round, within these bounds
constexpr int64_t kLoneMessages = 2000;
constexpr int64_t kLoneBytesMax = 512 << 20;
constexpr int64_t kClasses = 16;  // columns of the weight
constexpr int64_t kSizeMin = 1 << 10;
constexpr int64_t kSizeMax = 256 << 20;
constexpr int64_t kStepsForEver = 1'000'000'000;  // the benchmark cancels the job
constexpr absl::Duration kWorkerTimeout = absl::Minutes(10);
constexpr absl::Duration kJobEndTimeout = absl::Minutes(1);

struct SyncBenchOptions {
  int workers = 1;
  int ps = 1;
  int ps_threads = 1;
  std::string sizes = "4K,64K,256K,1M,4M,16M,64M";
  std::string transport = "auto";
  std::string poll = "auto";
  int64_t steps = 0;
  int rounds = 5;
  std::string optimizer = "sgd";
  std::string compression = "none";
  int replication = 1;
};

// The parameters of the measurement of one size.
struct SyncRound {
  int64_t size = 0;     // bytes of a tensor
  int64_t tensors = 0;  // all in flight together
  int64_t chunk_bytes = 0;
  int64_t steps = 0;
  int64_t lone_steps = 0;
};

struct SyncResult {
  SyncRound round;
  std::string transport;
  double gigabits_per_second = 0;  // f32 gradients, one way, sum over all workers
  double slowest_round = 0, fastest_round = 0;
  absl::Duration round_trip;
};

// ---------------------------------------------------------------- sizes

std::string SizeName(int64_t bytes) {
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, "M");
  return bytes % (1 << 10) == 0 ? absl::StrCat(bytes >> 10, "K") : absl::StrCat(bytes);
}

absl::StatusOr<int64_t> ParseSize(absl::string_view text) {
  absl::string_view number = text;
  int64_t unit = 1, value = 0;
  if (absl::EndsWithIgnoreCase(text, "K")) unit = 1 << 10;
  if (absl::EndsWithIgnoreCase(text, "M")) unit = 1 << 20;
  if (unit > 1) number.remove_suffix(1);
  if (!absl::SimpleAtoi(number, &value) || value < 1 || value > kSizeMax / unit ||
      value * unit < kSizeMin || value * unit % kSizeMin != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--sizes: '", text, "' is not a multiple of 1K up to ", SizeName(kSizeMax), "; try 4K,1M"));
  }
  return value * unit;
}

// Parses "4K,1M" or "4K..64M". A range starts at the first size and multiplies it by 4 until the
// last size is passed.
absl::StatusOr<std::vector<int64_t>> ParseSizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(item, absl::MaxSplits("..", 1));
    ASSIGN_OR_RETURN(const int64_t first, ParseSize(ends.front()));
    ASSIGN_OR_RETURN(const int64_t last, ParseSize(ends.back()));
    for (int64_t size = first; size <= last; size *= 4) sizes.push_back(size);
  }
  return sizes;
}

SyncRound RoundOf(int64_t size, int64_t steps) {
  SyncRound round{.size = size};
  round.tensors = std::clamp(kTensorsBytes / size, kTensorsMin, kTensorsMax);
  round.chunk_bytes = std::min(size, limits::kChunkBytesDefault);
  const int64_t step_bytes = size * round.tensors;
  round.steps =
      steps > 0
          ? steps
          : std::max<int64_t>(
                2, std::clamp(size * kRoundMessages, kRoundBytesMin, kRoundBytesMax) / step_bytes);
  const int64_t messages = step_bytes / round.chunk_bytes;
  round.lone_steps =
      std::max<int64_t>(1, std::min(kLoneMessages / messages, kLoneBytesMax / step_bytes));
  return round;
}

// ---------------------------------------------------------------- the job

absl::Status SetOptimizer(const std::string& name, v1::Optimizer& optimizer) {
  constexpr double kLearningRate = 1e-6;
  if (name == "sgd" || name == "momentum") {
    optimizer.mutable_sgd()->set_learning_rate(kLearningRate);
    if (name == "momentum") optimizer.mutable_sgd()->set_momentum(0.9);
  } else if (name == "adam") {
    optimizer.mutable_adam()->set_learning_rate(kLearningRate);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("--optimizer: unknown '", name,
                                                   "'; the optimizers are sgd, momentum and adam"));
  }
  return absl::OkStatus();
}

absl::Status SetCompression(const std::string& name, v1::SyncSpec& sync) {
  if (name == "none") return absl::OkStatus();
  v1::CompressionKind kind;
  if (!v1::CompressionKind_Parse(absl::StrCat("COMPRESSION_", absl::AsciiStrToUpper(name)),
                                 &kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--compression: unknown '", name,
                     "'; the kinds are none, fp16, bf16, int8, topk, onebit and powersgd"));
  }
  sync.mutable_compression()->set_kind(kind);
  return absl::OkStatus();
}

// Returns a job with one weight that is cut into equal chunks. Workers never compute its model.
absl::StatusOr<v1::JobSpec> JobOf(const SyncRound& round, const SyncBenchOptions& options) {
  v1::JobSpec spec;
  spec.set_name("bench-sync");
  spec.mutable_model()->mutable_zoo()->set_name("mlp");
  auto& arguments = *spec.mutable_model()->mutable_zoo()->mutable_args()->mutable_fields();
  arguments["inputs"].set_number_value(static_cast<double>(
      round.size * round.tensors / static_cast<int64_t>(sizeof(float)) / kClasses));
  arguments["hidden"].set_string_value("");
  arguments["classes"].set_number_value(kClasses);
  spec.mutable_data()->mutable_synthetic()->set_samples(options.workers);
  spec.mutable_data()->set_batch_size(options.workers);
  spec.mutable_training()->set_steps(kStepsForEver);
  RETURN_IF_ERROR(SetOptimizer(options.optimizer, *spec.mutable_training()->mutable_optimizer()));
  RETURN_IF_ERROR(SetCompression(options.compression, *spec.mutable_sync()));
  spec.mutable_resources()->set_ps(options.ps);
  spec.mutable_resources()->set_ps_replication(options.replication);
  spec.mutable_resources()->mutable_workers()->set_min(options.workers);
  spec.mutable_resources()->mutable_workers()->set_max(options.workers);
  spec.set_chunk_bytes(round.chunk_bytes);
  return spec;
}

// ---------------------------------------------------------------- the workers' answers

// Returns a line with the seconds of the median lone round trip, the seconds of each round, and the
// transport's name.
std::string ResultLine(const BenchWorkerResult& result) {
  std::string line = absl::StrFormat("%.9f", absl::ToDoubleSeconds(result.round_trip));
  for (const absl::Duration round : result.rounds) {
    absl::StrAppendFormat(&line, " %.9f", absl::ToDoubleSeconds(round));
  }
  return absl::StrCat(line, " ", result.transport, "\n");
}

absl::StatusOr<BenchWorkerResult> ReadResult(const std::string& path, const std::string& log) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  if (words.size() < 3) {
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    return absl::UnavailableError(absl::StrCat("a worker failed:\n", text.str()));
  }
  BenchWorkerResult result{.transport = words.back()};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    double seconds = 0;
    if (!absl::SimpleAtod(words[i], &seconds)) {
      return absl::DataLossError(absl::StrCat(path, ": '", words[i], "' is not a number"));
    }
    (i == 0 ? result.round_trip : result.rounds.emplace_back()) = absl::Seconds(seconds);
  }
  return result;
}

SyncResult Summarise(const SyncRound& round, const std::vector<BenchWorkerResult>& workers) {
  const double bits = 8.0 * static_cast<double>(round.size * round.tensors * round.steps) *
                      static_cast<double>(workers.size());
  std::vector<double> rates;
  for (size_t i = 0; i < workers.front().rounds.size(); ++i) {
    // A round takes as long as its slowest worker.
    absl::Duration longest;
    for (const BenchWorkerResult& worker : workers) longest = std::max(longest, worker.rounds[i]);
    rates.push_back(bits / absl::ToDoubleSeconds(longest) / 1e9);
  }
  std::ranges::sort(rates);
  return {.round = round,
          .transport = workers.front().transport,
          .gigabits_per_second = rates[rates.size() / 2],
          .slowest_round = rates.front(),
          .fastest_round = rates.back(),
          .round_trip = workers.front().round_trip};
}

// ---------------------------------------------------------------- a run

class SyncBench {
 public:
  static absl::StatusOr<std::unique_ptr<SyncBench>> Create(const SyncBenchOptions& options) {
    std::error_code error;
    std::string dir = (fs::temp_directory_path(error) / "muster-bench-XXXXXX").string();
    if (mkdtemp(dir.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat(dir, ": cannot make the folder; try TMPDIR=..."));
    }
    auto bench = std::make_unique<SyncBench>(options, dir);
    ASSIGN_OR_RETURN(
        bench->cluster_,
        LocalCluster::Start({.dir = dir,
                             .ps = options.ps,
                             .workers = 0,
                             .ps_threads = options.ps_threads,
                             .ps_flags = {absl::StrCat("--transport=", options.transport),
                                          absl::StrCat("--poll=", options.poll)}}));
    return bench;
  }

  SyncBench(const SyncBenchOptions& options, std::string dir)
      : options_(options), dir_(std::move(dir)) {}
  ~SyncBench() {
    cluster_.reset();
    std::error_code error;
    fs::remove_all(dir_, error);
  }

  absl::StatusOr<SyncResult> Measure(const SyncRound& round) {
    ASSIGN_OR_RETURN(const v1::JobSpec spec, JobOf(round, options_));
    CoordinatorClient client(cluster_->address());
    v1::CreateJobRequest request;
    *request.mutable_spec() = spec;
    ASSIGN_OR_RETURN(const v1::Job job, client.CreateJob(request));
    ASSIGN_OR_RETURN(const std::vector<BenchWorkerResult> workers, RunWorkers(round));
    RETURN_IF_ERROR(End(client, JobIdOf(job.name())));
    return Summarise(round, workers);
  }

 private:
  absl::StatusOr<std::vector<BenchWorkerResult>> RunWorkers(const SyncRound& round) {
    std::vector<Process> processes;
    std::vector<std::pair<std::string, std::string>> files;  // result, log
    for (int rank = 0; rank < options_.workers; ++rank) {
      const std::string name = absl::StrCat("bench-", ++workers_started_);
      const auto& [result, log] = files.emplace_back(absl::StrCat(dir_, "/", name, ".result"),
                                                     absl::StrCat(dir_, "/", name, ".log"));
      ASSIGN_OR_RETURN(
          processes.emplace_back(),
          StartProcess({.argv = {ProgramPath(), "bench", "sync-worker",
                                 absl::StrCat("--coordinator=", cluster_->address()),
                                 absl::StrCat("--name=", name), absl::StrCat("--result=", result),
                                 absl::StrCat("--transport=", options_.transport),
                                 absl::StrCat("--poll=", options_.poll),
                                 absl::StrCat("--steps=", round.steps),
                                 absl::StrCat("--rounds=", options_.rounds),
                                 absl::StrCat("--lone-steps=", round.lone_steps)},
                        .log_path = log}));
    }
    if (absl::Status ended = AwaitExit(processes, kWorkerTimeout); !ended.ok()) {
      StopProcesses(processes, absl::Seconds(1));
      return ended;
    }
    std::vector<BenchWorkerResult> results;
    for (const auto& [result, log] : files) {
      ASSIGN_OR_RETURN(results.emplace_back(), ReadResult(result, log));
    }
    return results;
  }

  // Cancels the job and waits for its end, so that the ps are free for the next job. The job may
  // have ended by itself after its workers left.
  static absl::Status End(CoordinatorClient& client, const std::string& id) {
    const absl::Status cancelled = client.CancelJob(id).status();
    if (!absl::IsFailedPrecondition(cancelled)) RETURN_IF_ERROR(cancelled);
    return client.Watch(id, {.deadline = absl::Now() + kJobEndTimeout},
                        [](const auto&) { return CoordinatorClient::WatchStep::kContinue; });
  }

  const SyncBenchOptions options_;
  const std::string dir_;
  std::unique_ptr<LocalCluster> cluster_;
  int workers_started_ = 0;
};

// ---------------------------------------------------------------- printing

std::string Microseconds(absl::Duration duration) {
  return absl::StrFormat("%.1f us", absl::ToDoubleMicroseconds(duration));
}

std::string TableOf(const std::vector<SyncResult>& results, const SyncBenchOptions& options) {
  Table table(
      {"SIZE", "MESSAGES", "MEDIAN Gbit/s", "SLOWEST", "FASTEST", "ROUND TRIP", "TRANSPORT"});
  for (const SyncResult& r : results) {
    table.Add({SizeName(r.round.size),
               absl::StrCat(r.round.tensors * r.round.size / r.round.chunk_bytes, " x ",
                            SizeName(r.round.chunk_bytes)),
               absl::StrFormat("%.2f", r.gigabits_per_second),
               absl::StrFormat("%.2f", r.slowest_round), absl::StrFormat("%.2f", r.fastest_round),
               Microseconds(r.round_trip), r.transport});
  }
  return absl::StrFormat(
      "%s\nGbit/s of f32 gradients one way (push -> sum -> %s -> values), all workers together: "
      "median, slowest and\nfastest of %d rounds. Round trip: median of one message alone.\n"
      "Workers: %d. Ps: %d. Threads of each ps: %d. Poll: %s. Compression: %s.\n",
      table.ToString(), options.optimizer, options.rounds, options.workers, options.ps,
      options.ps_threads, options.poll, options.compression);
}

google::protobuf::Struct MessageOf(const std::vector<SyncResult>& results,
                                   const SyncBenchOptions& options) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["workers"].set_number_value(options.workers);
  fields["ps"].set_number_value(options.ps);
  fields["ps_threads"].set_number_value(options.ps_threads);
  fields["poll"].set_string_value(options.poll);
  fields["optimizer"].set_string_value(options.optimizer);
  fields["compression"].set_string_value(options.compression);
  for (const SyncResult& r : results) {
    auto& row = *fields["sizes"].mutable_list_value()->add_values()->mutable_struct_value();
    const auto number = [&](const char* name, double value) {
      (*row.mutable_fields())[name].set_number_value(value);
    };
    number("bytes", static_cast<double>(r.round.size));
    number("message_bytes", static_cast<double>(r.round.chunk_bytes));
    number("messages", static_cast<double>(r.round.tensors * r.round.size / r.round.chunk_bytes));
    number("gigabits_per_second", r.gigabits_per_second);
    number("slowest_gigabits_per_second", r.slowest_round);
    number("fastest_gigabits_per_second", r.fastest_round);
    number("round_trip_seconds", absl::ToDoubleSeconds(r.round_trip));
    (*row.mutable_fields())["transport"].set_string_value(r.transport);
  }
  return message;
}

// Returns a line per size: bytes, Gbit/s, microseconds.
std::string NamesOf(const std::vector<SyncResult>& results) {
  std::string text;
  for (const SyncResult& r : results) {
    absl::StrAppendFormat(&text, "%d %.3f %.2f\n", r.round.size, r.gigabits_per_second,
                          absl::ToDoubleMicroseconds(r.round_trip));
  }
  return text;
}

absl::Status PrintSyncBench(const SyncBenchOptions& options, const Session& session) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ParseSizes(options.sizes));
  RETURN_IF_ERROR(ParseLinkKind(options.transport).status());
  RETURN_IF_ERROR(ParsePollMode(options.poll).status());
  RETURN_IF_ERROR(JobOf(RoundOf(sizes.front(), options.steps), options).status());
  ASSIGN_OR_RETURN(const auto bench, SyncBench::Create(options));
  std::vector<SyncResult> results;
  for (const int64_t size : sizes) {
    ASSIGN_OR_RETURN(results.emplace_back(), bench->Measure(RoundOf(size, options.steps)));
  }
  session.Print(MessageOf(results, options), TableOf(results, options), NamesOf(results));
  return absl::OkStatus();
}

// ---------------------------------------------------------------- the other process

struct SyncWorkerCommand {
  BenchWorkerOptions worker;
  std::string transport = "auto";
  std::string poll = "auto";
  std::string result;
};

absl::Status RunSyncWorker(SyncWorkerCommand command) {
  ASSIGN_OR_RETURN(command.worker.links, ParseLinkKind(command.transport));
  ASSIGN_OR_RETURN(command.worker.poll, ParsePollMode(command.poll));
  ASSIGN_OR_RETURN(const BenchWorkerResult result, RunBenchWorker(command.worker));
  std::ofstream file(command.result);
  file << ResultLine(result);
  file.close();
  return file ? absl::OkStatus()
              : absl::UnavailableError(absl::StrCat(command.result, ": cannot be written"));
}

void AddSyncWorker(Command bench, Session& session) {
  auto command = std::make_shared<SyncWorkerCommand>();
  Command worker = bench.AddCommand("sync-worker", "A worker of `bench sync`",
                                    "muster bench sync-worker --coordinator 127.0.0.1:7070 ...");
  worker.SetGroup("");  // not in the help
  worker.AddOption("--coordinator", command->worker.coordinator, "host:port").Required();
  worker.AddOption("--name", command->worker.member, "Its name in the fleet").Required();
  worker.AddOption("--result", command->result, "File for the times").Required();
  worker.AddOption("--transport", command->transport, "As for `bench sync`");
  worker.AddOption("--poll", command->poll, "As for `bench sync`");
  worker.AddOption("--steps", command->worker.steps, "Steps of a round");
  worker.AddOption("--rounds", command->worker.rounds, "Timed rounds, after an untimed one");
  worker.AddOption("--lone-steps", command->worker.lone_steps, "Steps with one message at a time");
  worker.SetAction([command, &session] { session.Fail(RunSyncWorker(*command)); });
}

}  // namespace

void AddSyncBench(Command bench, Session& session) {
  auto options = std::make_shared<SyncBenchOptions>();
  Command sync = bench.AddCommand("sync", "Push gradients to ps and get values, no training",
                                  "muster bench sync --workers 2 --ps 2 --sizes 4K..64M");
  sync.AddOption("--workers", options->workers, "Processes that push").Within(1, 64);
  sync.AddOption("--ps", options->ps, "Parameter servers").Within(1, 64);
  sync.AddOption("--ps-threads", options->ps_threads, "Shard threads of each ps")
      .Within(1, limits::kShardThreadsMax);
  sync.AddOption("--sizes", options->sizes, "Bytes of a tensor: 4K,1M or 4K..64M");
  sync.AddOption("--transport", options->transport, "auto, shm, tcp or rdma");
  sync.AddOption("--poll", options->poll, "auto, always or never");
  sync.AddOption("--steps", options->steps, "Steps of a round; default: by the size")
      .Within(0, 1000000);
  sync.AddOption("--rounds", options->rounds, "Rounds; the median is reported").Within(1, 1000);
  sync.AddOption("--optimizer", options->optimizer, "sgd, momentum or adam");
  sync.AddOption("--compression", options->compression,
                 "Codec of gradients: none, bf16, int8, ...");
  sync.AddOption("--replication", options->replication,
                 "Number of ps with a copy of each parameter")
      .Within(1, 2);
  sync.SetAction([options, &session] { session.Fail(PrintSyncBench(*options, session)); });
  AddSyncWorker(bench, session);
}

}  // namespace muster::cli
