#include "lib/telemetry/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::metrics_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Connects to the port of `url`, on loopback.
int ConnectTo(const std::string& url) {
  int port = 0;
  EXPECT_TRUE(
      absl::SimpleAtoi(url.substr(url.rfind(':') + 1, url.rfind('/') - url.rfind(':') - 1), &port))
      << url;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0) << url;
  return fd;
}

// Returns the answer to a scrape.
std::string Get(const std::string& url) {
  const int fd = ConnectTo(url);
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()), request.size());
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

TEST(MetricsTest, SameNameAndLabelsAreOneMetric) {
  Metrics metrics;
  metrics.Counter("muster_test_total", "Help.", {{"kind", "a"}}).Increment();
  metrics.Counter("muster_test_total", "Help.", {{"kind", "a"}}).Increment(2);
  metrics.Counter("muster_test_total", "Help.", {{"kind", "b"}}).Increment();

  EXPECT_THAT(metrics.Render(), HasSubstr("muster_test_total{kind=\"a\"} 3"));
  EXPECT_THAT(metrics.Render(), HasSubstr("muster_test_total{kind=\"b\"} 1"));
}

TEST(MetricsTest, RemovedMetricsAreNotRendered) {
  Metrics metrics;
  auto& gauge = metrics.Gauge("muster_test_step", "Help.", {{"job", "j"}});
  auto& counter = metrics.Counter("muster_test_total", "Help.", {{"job", "j"}});
  auto& histogram = metrics.Histogram("muster_test_seconds", "Help.", {{"job", "j"}});
  metrics.Counter("muster_test_total", "Help.", {{"job", "other"}});
  gauge.Set(5);
  EXPECT_THAT(metrics.Render(), HasSubstr("muster_test_step{job=\"j\"} 5"));

  metrics.Remove("muster_test_step", gauge);
  metrics.Remove("muster_test_total", counter);
  metrics.Remove("muster_test_seconds", histogram);

  EXPECT_THAT(metrics.Render(), Not(HasSubstr("job=\"j\"")));
  EXPECT_THAT(metrics.Render(), HasSubstr("muster_test_total{job=\"other\"} 0"));
}

TEST(MetricsTest, DurationsReachBeyondAMinute) {
  const std::vector<double> buckets = Metrics::DurationBuckets();
  EXPECT_TRUE(std::ranges::is_sorted(buckets));
  EXPECT_GT(buckets.back(), 60);
}

TEST(MetricsTest, EveryProcessReportsItself) {
  Metrics metrics;
  const std::string text = metrics.Render();
  for (const char* name :
       {"muster_build_info ", "process_max_fds ", "process_cpu_seconds_total ",
        "process_resident_memory_bytes ", "process_open_fds ", "process_start_time_seconds "}) {
    EXPECT_THAT(text, HasSubstr(name));
  }
}

TEST(MetricsTest, BuildInfoHasTheGivenLabels) {
  EXPECT_THAT(Metrics({{"commit", "71f0bcc9d2a1"}, {"version", "0.3.0+14.g71f0bcc9d2a1"}}).Render(),
              HasSubstr("\nmuster_build_info{commit=\"71f0bcc9d2a1\","
                        "version=\"0.3.0+14.g71f0bcc9d2a1\"} 1\n"));
}

// A new page has only the metrics that every process exports, and none of the HTTP library's own.
TEST(MetricsTest, ThePageHasOnlyOurMetrics) {
  Metrics metrics;
  ASSERT_TRUE(metrics.Serve("127.0.0.1:0").ok());
  const std::string answer = Get(metrics.url());

  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, HasSubstr("\nmuster_build_info "));
  EXPECT_THAT(answer, Not(HasSubstr("exposer_")));
}

TEST(MetricsTest, MetricsAddedLaterAreOnThePage) {
  Metrics metrics;
  ASSERT_TRUE(metrics.Serve("127.0.0.1:0").ok());
  metrics.Gauge("muster_test_step", "Help.").Set(7);

  EXPECT_THAT(Get(metrics.url()), HasSubstr("\nmuster_test_step 7\n"));
}

// Regression: idle connections used to hold a thread for half a minute each, and two of them held
// all threads.
TEST(MetricsTest, IdleConnectionsDoNotBlockScrapes) {
  Metrics metrics;
  ASSERT_TRUE(metrics.Serve("127.0.0.1:0").ok());
  std::vector<int> silent;
  for (int i = 0; i < 9; ++i) silent.push_back(ConnectTo(metrics.url()));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(Get(metrics.url()), HasSubstr("muster_build_info"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15)) << "one turn of three seconds";
  for (const int fd : silent) close(fd);
}

TEST(MetricsTest, ServesOnAFreePortAndRefusesATakenOne) {
  Metrics first, second;
  ASSERT_TRUE(first.Serve("127.0.0.1:0").ok());
  EXPECT_THAT(first.url(), HasSubstr("http://127.0.0.1:"));
  const std::string taken = first.url().substr(7, first.url().rfind('/') - 7);

  absl::Status status = second.Serve(taken);

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(taken));
  EXPECT_TRUE(absl::IsInvalidArgument(second.Serve("nonsense")));
}

}  // namespace
}  // namespace muster::metrics_test
