#include "tests/training_cluster.h"

#include <glog/logging.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/fleet/channel.h"
#include "lib/graph/model/model.h"
#include "lib/job/job_file.h"
#include "lib/job/resource_name.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/grpc_status.h"

namespace muster {
namespace {

std::string FreshFolder(const std::string& name) {
  std::string path = absl::StrCat(::testing::TempDir(), "/", name, ".XXXXXX");
  CHECK(mkdtemp(path.data()) != nullptr) << path;
  return path;
}

template <typename T>
T CheckOk(absl::StatusOr<T> value) {
  CHECK(value.ok()) << value.status();
  return *std::move(value);
}

v1::JobSpec Parse(const std::string& yaml) { return CheckOk(ParseJobFile(yaml, "job.yaml")); }

}  // namespace

TrainingCluster::TrainingCluster(cli::LocalCluster::Options options)
    : dir_(options.dir.empty() ? FreshFolder("cluster") : options.dir) {
  options.dir = dir_;
  cluster_ = CheckOk(cli::LocalCluster::Start(options));
  auto channel = DialCoordinator(cluster_->target());
  jobs_ = v1::JobService::NewStub(channel);
  fleet_ = v1::FleetService::NewStub(channel);
  checkpoints_ = v1::CheckpointService::NewStub(channel);
}

std::string TrainingCluster::Submit(const std::string& yaml) {
  grpc::ClientContext context;
  v1::CreateJobRequest request;
  v1::Job job;
  *request.mutable_spec() = Parse(yaml);
  const absl::Status status = FromGrpc(jobs_->CreateJob(&context, request, &job));
  CHECK(status.ok()) << status << "\n" << yaml;
  return JobIdOf(job.name());
}

absl::Status TrainingCluster::SubmitError(const std::string& yaml) {
  absl::StatusOr<v1::JobSpec> spec = ParseJobFile(yaml, "job.yaml");
  if (!spec.ok()) return spec.status();
  grpc::ClientContext context;
  v1::CreateJobRequest request;
  v1::Job job;
  *request.mutable_spec() = *spec;
  return FromGrpc(jobs_->CreateJob(&context, request, &job));
}

v1::Job TrainingCluster::Get(const std::string& job) {
  v1::GetJobRequest request;
  request.set_name(job);
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  for (;;) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    context.set_wait_for_ready(true);
    v1::Job answer;
    const absl::Status status = FromGrpc(jobs_->GetJob(&context, request, &answer));
    if (status.ok()) return answer;
    // The channel may still have the connection to a coordinator that was restarted meanwhile.
    CHECK(absl::IsUnavailable(status) && absl::Now() < deadline) << status;
  }
}

v1::Job TrainingCluster::Await(const std::string& job,
                               std::function<bool(const v1::Job&)> condition,
                               absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  v1::Job last;
  // A stream breaks if the coordinator is killed. The loop watches again until the deadline.
  while (absl::Now() < deadline) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    context.set_wait_for_ready(true);
    v1::WatchJobRequest request;
    request.set_name(job);
    auto stream = jobs_->WatchJob(&context, request);
    v1::WatchJobResponse response;
    while (stream->Read(&response)) {
      last = response.job();
      if (condition(last)) {
        context.TryCancel();
        return last;
      }
    }
    if (stream->Finish().ok()) break;  // the job has ended
  }
  LOG(FATAL) << "the job did not get there: " << last.ShortDebugString() << "\n" << Logs();
}

v1::Job TrainingCluster::AwaitState(const std::string& job, v1::JobState state,
                                    absl::Duration timeout) {
  return Await(
      job, [&](const v1::Job& now) { return now.state() == state; }, timeout);
}

v1::Job TrainingCluster::AwaitStep(const std::string& job, int64_t step) {
  return Await(job, [&](const v1::Job& now) { return now.progress().step() >= step; });
}

void TrainingCluster::Suspend(const std::string& job) {
  grpc::ClientContext context;
  v1::SuspendJobRequest request;
  v1::Job answer;
  request.set_name(job);
  const absl::Status status = FromGrpc(jobs_->SuspendJob(&context, request, &answer));
  CHECK(status.ok()) << status << "\n" << Logs();
}

void TrainingCluster::Resume(const std::string& job, const v1::ResourceSpec* resources) {
  grpc::ClientContext context;
  v1::ResumeJobRequest request;
  v1::Job answer;
  request.set_name(job);
  if (resources != nullptr) *request.mutable_resources() = *resources;
  const absl::Status status = FromGrpc(jobs_->ResumeJob(&context, request, &answer));
  CHECK(status.ok()) << status << "\n" << Logs();
}

std::string TrainingCluster::Run(const std::string& yaml) {
  const std::string job = Submit(yaml);
  AwaitState(job, v1::SUCCEEDED);
  return job;
}

std::vector<StepMetrics> TrainingCluster::Metrics(const std::string& job) {
  std::vector<StepMetrics> metrics;
  std::ifstream file(absl::StrCat(state_dir(), "/jobs/", job, "/metrics.jsonl"));
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    CHECK(record.is_object()) << job << ": " << line;
    if (!record.contains("loss")) continue;
    auto number = [&](const char* key) {
      return record[key].is_number() ? record[key].get<double>() : std::nan("");
    };
    metrics.push_back({.step = record["step"],
                       .loss = number("loss"),
                       .gradient_norm = number("gradient_norm"),
                       .loss_scale = record.value("loss_scale", 0.0),
                       .skipped = record.value("skipped", false)});
  }
  return metrics;
}

std::string TrainingCluster::checkpoint_directory(const std::string& job) const {
  return absl::StrCat(state_dir(), "/jobs/", job, "/checkpoints");
}

std::map<std::string, std::vector<float>> TrainingCluster::Parameters(const std::string& job,
                                                                      int64_t step) {
  const auto reader =
      CheckOk(CheckpointReader::Open(CheckpointPath(checkpoint_directory(job), step)));
  const v1::Graph graph = CheckOk(LoadModel(reader->manifest().spec.model())).graph;
  std::map<std::string, std::vector<float>> parameters;
  for (const v1::Parameter& parameter : graph.parameters()) {
    std::vector<float>& values = parameters[parameter.name()];
    values.resize(ElementCount(parameter));
    const absl::Status status = reader->Read(parameter.name(), "", 0, absl::MakeSpan(values));
    CHECK(status.ok()) << status;
  }
  return parameters;
}

std::map<std::string, std::string> TrainingCluster::Hashes(const std::string& job, int64_t step) {
  const auto reader =
      CheckOk(CheckpointReader::Open(CheckpointPath(checkpoint_directory(job), step)));
  const absl::Status status = reader->Verify();
  CHECK(status.ok()) << status;
  std::map<std::string, std::string> hashes;
  for (const v1::CheckpointFile& file : reader->manifest().files)
    hashes[file.name()] = file.sha256();
  return hashes;
}

std::string TrainingCluster::Logs() const {
  std::string text;
  for (const std::string& name : cluster_->names()) {
    std::ifstream file(cluster_->log_path(name));
    std::string log((std::istreambuf_iterator<char>(file)), {});
    constexpr size_t kTail = 3000;
    absl::StrAppend(&text, "---- ", name, "\n",
                    log.size() > kTail ? log.substr(log.size() - kTail) : log);
  }
  return text;
}

int Lengthened(int count) {
  const char* const text = std::getenv("TEST_LENGTH");
  int length = 1;
  CHECK(text == nullptr || (absl::SimpleAtoi(text, &length) && length > 0))
      << "TEST_LENGTH=" << text;
  return count * length;
}

int64_t CheckpointStepOf(const v1::Job& job) {
  if (job.checkpoint().empty()) return 0;
  const auto checkpoint = ParseCheckpointRef(job.checkpoint());
  CHECK(checkpoint.has_value() && checkpoint->step.has_value()) << job.checkpoint();
  return *checkpoint->step;
}

double LargestDifference(const std::map<std::string, std::vector<float>>& a,
                         const std::map<std::string, std::vector<float>>& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.size() != b.size()) return kInfinity;
  double largest = 0;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) return kInfinity;
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(double{values[i]} - double{other->second[i]});
      if (!(difference <= largest)) largest = std::isnan(difference) ? kInfinity : difference;
    }
  }
  return largest;
}

std::string MakeIdxData(int samples, int size, uint64_t seed) {
  const std::string folder = FreshFolder("idx");
  auto word = [](uint32_t value) {
    return std::string{static_cast<char>(value >> 24), static_cast<char>(value >> 16),
                       static_cast<char>(value >> 8), static_cast<char>(value)};
  };
  std::mt19937_64 random(seed);
  std::ofstream images(folder + "/images", std::ios::binary),
      labels(folder + "/labels", std::ios::binary);
  images << word(0x803) << word(samples) << word(size) << word(size);
  labels << word(0x801) << word(samples);
  for (int i = 0; i < samples; ++i) {
    const int label = static_cast<int>(random() % 10);
    labels.put(static_cast<char>(label));
    for (int pixel = 0; pixel < size * size; ++pixel) {
      const bool bar = pixel / size == label % size;
      images.put(static_cast<char>(random() % 100 + (bar ? 150 : 0)));
    }
  }
  return folder;
}

}  // namespace muster
