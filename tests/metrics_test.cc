// Every role serves /metrics. The page passes Prometheus' lint and changes with the work.
#include <stdlib.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/metrics_page.h"
#include "tests/training_cluster.h"

namespace muster::metrics_test {
namespace {

std::set<std::string> Families(const std::string& text) {
  std::set<std::string> families;
  std::istringstream lines(text);
  for (std::string hash, kind, name, rest;
       lines >> hash >> kind >> name && std::getline(lines, rest);) {
    if (hash == "#" && kind == "TYPE") families.insert(name);
  }
  return families;
}

TEST(MetricsTest, MoveWithTheWorkAndPassPrometheusLint) {
  TrainingCluster cluster({.ps = 1, .workers = 1, .ps_threads = 1});
  cluster.Run(R"(
name: metrics
model: {zoo: {name: linear}}
data: {linear: {slope: 3, intercept: 1, samples: 64}, batch_size: 8}
training: {steps: 40, optimizer: {sgd: {learning_rate: 0.1}}}
)");

  const std::map<std::string, std::string> urls = MetricsUrls(cluster);
  ASSERT_EQ(urls.size(), 3);
  const bool promtool = system("promtool --version >/dev/null 2>&1") == 0;
  for (const auto& [member, url] : urls) {
    SCOPED_TRACE(member);
    const std::string text = ScrapeMetrics(url);
    EXPECT_GE(Families(text).size(), 22);  // promtool accepts an empty page
    EXPECT_EQ(MetricTotal(text, "muster_build_info"), 1);
    EXPECT_NE(text.find("muster_build_info{commit="), std::string::npos) << text;
    if (!promtool) continue;
    const std::string page = absl::StrCat(::testing::TempDir(), "/", member, ".txt");
    std::ofstream(page) << text;
    EXPECT_EQ(system(absl::StrCat("promtool check metrics <", page, " >&2").c_str()), 0);
  }
  // The worker runs 40 steps of 8 samples. Each step pushes two parameters of one float, a chunk
  // each.
  EXPECT_EQ(MetricTotal(ScrapeMetrics(urls.at("worker-0")), "muster_worker_steps_total"), 40);
  EXPECT_EQ(MetricTotal(ScrapeMetrics(urls.at("worker-0")), "muster_worker_samples_total"), 320);
  EXPECT_EQ(MetricTotal(ScrapeMetrics(urls.at("ps-0")), "muster_ps_pushes_total"), 80);
  EXPECT_EQ(MetricTotal(ScrapeMetrics(urls.at("ps-0")), "muster_ps_push_bytes_total"), 80 * 4);
  if (!promtool) GTEST_SKIP() << "no promtool: the lint did not run";
}

}  // namespace
}  // namespace muster::metrics_test
