// Every role's /metrics is there, passes Prometheus' own lint and moves with the work.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tests/training_cluster.h"

namespace muster {
namespace {

// The body of http://<host>:<port>/metrics, asked for on loopback.
std::string Scrape(const std::string& url) {
  int port = 0;
  const size_t colon = url.rfind(':');
  EXPECT_TRUE(absl::SimpleAtoi(url.substr(colon + 1, url.find('/', colon) - colon - 1), &port))
      << url;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << url;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), request.size());
  std::string answer;
  char buffer[65536];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;)
    answer.append(buffer, static_cast<size_t>(n));
  close(fd);
  const size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos ? "" : answer.substr(body + 4);
}

std::set<std::string> Families(const std::string& text) {
  std::set<std::string> families;
  std::istringstream lines(text);
  for (std::string hash, kind, name, rest;
       lines >> hash >> kind >> name && std::getline(lines, rest);) {
    if (hash == "#" && kind == "TYPE") families.insert(name);
  }
  return families;
}

// Sum of all samples of a family.
double Total(const std::string& text, const std::string& name) {
  double total = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWith(line, name + "{") && !absl::StartsWith(line, name + " ")) continue;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
    total += value;
  }
  return total;
}

std::map<std::string, std::string> Urls(TrainingCluster& cluster) {
  grpc::ClientContext context;
  v1::ListMembersResponse members;
  EXPECT_TRUE(cluster.fleet().ListMembers(&context, {}, &members).ok());
  std::map<std::string, std::string> urls{{"coordinator", members.coordinator_metrics_url()}};
  for (const v1::Member& member : members.members()) urls[member.name()] = member.metrics_url();
  return urls;
}

TEST(MetricsTest, MoveWithTheWorkAndPassPrometheusLint) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  cluster.Run(R"(
name: metrics
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: 1, samples: 64}, batch_size: 8}
training: {steps: 40, optimizer: {sgd: {learning_rate: 0.1}}}
)");

  const std::map<std::string, std::string> urls = Urls(cluster);
  ASSERT_EQ(urls.size(), 3);
  const bool promtool = system("promtool --version >/dev/null 2>&1") == 0;
  for (const auto& [member, url] : urls) {
    SCOPED_TRACE(member);
    const std::string text = Scrape(url);
    EXPECT_GE(Families(text).size(), 10);  // promtool finds nothing wrong with an empty page
    EXPECT_EQ(Total(text, "muster_build_info"), 1);
    if (!promtool) continue;
    const std::string page = absl::StrCat(::testing::TempDir(), "/", member, ".txt");
    std::ofstream(page) << text;
    EXPECT_EQ(system(absl::StrCat("promtool check metrics <", page, " >&2").c_str()), 0);
  }
  // Two parameters, one chunk each, 40 steps; and 40 steps of 8 samples.
  EXPECT_EQ(Total(Scrape(urls.at("worker-0")), "muster_worker_steps_total"), 40);
  EXPECT_EQ(Total(Scrape(urls.at("worker-0")), "muster_worker_samples_total"), 320);
  EXPECT_EQ(Total(Scrape(urls.at("ps-0")), "muster_ps_pushes_total"), 80);
  EXPECT_EQ(Total(Scrape(urls.at("ps-0")), "muster_ps_push_bytes_total"), 80 * 4);
  if (!promtool) GTEST_SKIP() << "no promtool: the lint did not run";
}

}  // namespace
}  // namespace muster
