#include "tests/metrics_page.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"

namespace muster {

std::map<std::string, std::string> MetricsUrls(TrainingCluster& cluster) {
  grpc::ClientContext context;
  v1::ListMembersResponse members;
  EXPECT_TRUE(cluster.fleet().ListMembers(&context, {}, &members).ok());
  std::map<std::string, std::string> urls{{"coordinator", members.coordinator_metrics_url()}};
  for (const v1::Member& member : members.members()) urls[member.name()] = member.metrics_url();
  return urls;
}

std::string ScrapeMetrics(const std::string& url) {
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

double MetricTotal(const std::string& page, const std::string& family) {
  double total = 0;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (!absl::StartsWith(line, family + "{") && !absl::StartsWith(line, family + " ")) continue;
    double value = 0;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) << line;
    total += value;
  }
  return total;
}

void AwaitMoreSteps(TrainingCluster& cluster, const std::string& job, int64_t steps) {
  const v1::Job running = cluster.AwaitState(job, v1::RUNNING);
  const std::string url = MetricsUrls(cluster).at(running.workers(0));
  const auto done = [&url] { return MetricTotal(ScrapeMetrics(url), "muster_worker_steps_total"); };
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  const double enough = done() + static_cast<double>(steps);
  while (done() < enough) {
    CHECK(absl::Now() < deadline) << job << " does not get on\n" << cluster.Logs();
  }
}

}  // namespace muster
