// Bad input is refused with one clear error and leaves nothing behind; hostile bytes kill nothing.
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "lib/cluster/field_fault.h"
#include "lib/cluster/grpc_status.h"
#include "tests/training_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr char kGoodJob[] = R"(
name: good
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: 1, samples: 64}, batch_size: 8}
training: {steps: 20, optimizer: {sgd: {learning_rate: 0.1}}}
resources: {workers: {min: 1}, ps: 1}
)";

int64_t JobCount(TrainingCluster& cluster) {
  grpc::ClientContext context;
  v1::ListJobsResponse response;
  EXPECT_TRUE(cluster.jobs().ListJobs(&context, {}, &response).ok());
  return response.jobs_size();
}

TEST(BadInputTest, EveryFaultyJobFileIsRefusedAndLeavesNothingBehind) {
  TrainingCluster cluster(
      {.ps = 1, .workers = 1, .ps_threads = 1, .coordinator_flags = {"--data_visible=true"}});
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/faulty_jobs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    SCOPED_TRACE(entry.path().filename());
    std::ifstream file(entry.path());
    const std::string yaml((std::istreambuf_iterator<char>(file)), {});
    // First line: "# expect: <field path>: <part of the message>".
    const std::vector<std::string> expected =
        absl::StrSplit(yaml.substr(0, yaml.find('\n')), absl::MaxSplits(": ", 2));
    ASSERT_EQ(expected.size(), 3) << "no '# expect: field: message' line";

    const absl::Status status = cluster.SubmitError(yaml);

    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected[1]));
    EXPECT_THAT(std::string(status.message()), HasSubstr(expected[2]));
  }
  EXPECT_GE(files, 40);
  EXPECT_EQ(JobCount(cluster), 0);
  EXPECT_TRUE(!std::filesystem::exists(cluster.state_dir() + "/jobs") ||
              std::filesystem::is_empty(cluster.state_dir() + "/jobs"));
  cluster.Run(kGoodJob);
}

TEST(BadInputTest, DataThatOnlyTheWorkerSeesFailsTheJobWithTheFieldPath) {
  TrainingCluster cluster(
      {.ps = 1, .workers = 1, .ps_threads = 1, .coordinator_flags = {"--data_visible=false"}});
  const std::string job = cluster.Submit(R"(
name: nodata
model: {zoo: {name: gpt, args: {layers: 1, heads: 1, channels: 8, context: 8}}}
data: {text: {path: /no/such/folder}, batch_size: 2}
training: {steps: 3, optimizer: {sgd: {learning_rate: 0.1}}}
)");

  const v1::Job failed = cluster.AwaitState(job, v1::FAILED, absl::Seconds(30));

  EXPECT_EQ(failed.reason(), "DATA_NOT_FOUND");
  EXPECT_THAT(failed.message(), HasSubstr("data.text.path"));
  EXPECT_THAT(failed.message(), HasSubstr("worker-0"));
}

TEST(BadInputTest, AllFaultsOfARequestComeAtOnceWithTheirFields) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  v1::CreateJobRequest request;
  v1::Job answer;
  request.mutable_spec()->set_name("Bad Name");
  request.mutable_spec()->mutable_data()->set_batch_size(-1);
  grpc::ClientContext context;

  const absl::Status status = FromGrpc(cluster.jobs().CreateJob(&context, request, &answer));

  EXPECT_TRUE(absl::IsInvalidArgument(status));
  std::set<std::string> fields;
  for (const FieldFault& fault : FaultsOf(status)) fields.insert(fault.field);
  for (const char* field : {"name", "data.batch_size", "model", "training.optimizer"}) {
    EXPECT_TRUE(std::any_of(fields.begin(), fields.end(), [&](const std::string& path) {
      return absl::StartsWith(path, field);
    })) << field;
  }
}

// TCP ports on which a process listens: its sockets' inodes looked up in /proc/net/tcp.
std::set<int> ListeningPorts(pid_t pid) {
  std::set<std::string> inodes;
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (fields.size() < 10 || fields[3] != "0A" || !inodes.contains(fields[9])) continue;
      ports.insert(
          static_cast<int>(std::stol(fields[1].substr(fields[1].rfind(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

void SendBytes(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    // The peer may close before everything is sent: that is an answer too.
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
  }
  close(fd);
}

TEST(BadInputTest, GarbageAtEveryPortKillsNothing) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  constexpr uint64_t kSeed = 20261121;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937_64 random(kSeed);
  std::vector<pid_t> pids;
  int attacked = 0;
  for (const std::string& name : cluster.members().names()) {
    pids.push_back(cluster.members().pid(name));
    for (int port : ListeningPorts(pids.back())) {
      ++attacked;
      for (size_t size : {1, 8, 64, 1000, 100'000, 5'000'000}) {
        std::string bytes(size, 0);
        for (char& byte : bytes) byte = static_cast<char>(random());
        SendBytes(port, bytes);
        SendBytes(port, std::string(size, '\xff'));
        SendBytes(port, std::string(size, '\0'));
      }
    }
  }
  EXPECT_GE(attacked, 4) << "coordinator, its metrics, ps and worker metrics";

  cluster.Run(kGoodJob);

  std::vector<pid_t> after;
  for (const std::string& name : cluster.members().names())
    after.push_back(cluster.members().pid(name));
  EXPECT_EQ(pids, after);
}

TEST(BadInputTest, OversizedRequestsAreRefused) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  v1::CreateJobRequest request;
  v1::Job answer;
  request.mutable_spec()->set_name(std::string(100 << 20, 'a'));
  grpc::ClientContext context;

  EXPECT_FALSE(cluster.jobs().CreateJob(&context, request, &answer).ok());

  cluster.Run(kGoodJob);
}

}  // namespace
}  // namespace muster
