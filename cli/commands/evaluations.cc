#include "cli/commands/evaluations.h"

#include <map>
#include <vector>

#include "lib/job/resource_name.h"

namespace muster::cli {
namespace {

constexpr int kPointsMax = 10'000;  // in one response

}  // namespace

EvaluationSource EvaluationsOf(CoordinatorClient& client, const std::string& job) {
  return [&client, job](int64_t first_step) -> std::vector<Evaluation> {
    v1::ReadJobMetricsRequest request;
    request.set_name(JobName(JobIdOf(job)));
    request.add_series("evaluation_loss");
    request.add_series("evaluation_accuracy");
    request.set_first_step(first_step);
    request.set_points(kPointsMax);
    const auto metrics = client.ReadJobMetrics(request);
    if (!metrics.ok()) return {};
    std::map<int64_t, Evaluation> by_step;
    for (const v1::MetricSeries& series : metrics->series()) {
      for (int i = 0; i < series.steps_size(); ++i) {
        Evaluation& evaluation = by_step[series.steps(i)];
        evaluation.step = series.steps(i);
        if (series.name() == "evaluation_loss") {
          evaluation.loss = series.values(i);
        } else {
          evaluation.accuracy = series.values(i);
        }
      }
    }
    std::vector<Evaluation> evaluations;
    for (const auto& [step, evaluation] : by_step) evaluations.push_back(evaluation);
    return evaluations;
  };
}

}  // namespace muster::cli
