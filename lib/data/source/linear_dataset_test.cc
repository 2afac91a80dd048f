#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "lib/data/dataset.h"
#include "lib/data/sample_bytes.h"
#include "lib/data/source/open_dataset.h"
#include "lib/status/status.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::linear_dataset_test {
namespace {

v1::Graph LineGraph() {
  v1::Graph graph;
  for (const char* name : {"input", "target"}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(name);
    input.set_dtype(v1::DTYPE_F32);
    input.add_shape(-1);
    input.add_shape(1);
  }
  return graph;
}

v1::DataSpec LineSpec(double noise, int64_t samples, uint64_t seed = 3) {
  v1::DataSpec spec;
  spec.mutable_linear()->set_slope(2.5);
  spec.mutable_linear()->set_intercept(-0.75);
  spec.mutable_linear()->set_noise(noise);
  spec.mutable_linear()->set_samples(samples);
  spec.set_seed(seed);
  return spec;
}

struct Points {
  std::vector<float> x, y;
};

Points AllOf(const v1::DataSpec& spec) {
  auto dataset = OpenDataset(spec, LineGraph());
  EXPECT_TRUE(dataset.ok()) << dataset.status();
  std::vector<int64_t> samples((*dataset)->samples());
  std::iota(samples.begin(), samples.end(), int64_t{0});
  Points points{std::vector<float>(samples.size()), std::vector<float>(samples.size())};
  EXPECT_TRUE((*dataset)->Read(SamplesOf(0, samples), {BytesOf(points.x), BytesOf(points.y)}).ok());
  return points;
}

TEST(LinearDatasetTest, WithoutNoiseEveryPointIsOnTheLine) {
  const Points points = AllOf(LineSpec(0, 1000));
  double sum = 0;
  for (size_t i = 0; i < points.x.size(); ++i) {
    EXPECT_TRUE(-1 <= points.x[i] && points.x[i] < 1);
    EXPECT_FLOAT_EQ(points.y[i], 2.5 * points.x[i] - 0.75);
    sum += points.x[i];
  }
  EXPECT_NEAR(sum / 1000, 0, 0.06);  // three standard errors
}

TEST(LinearDatasetTest, NoiseHasItsDeviation) {
  const Points points = AllOf(LineSpec(0.5, 20000));
  double sum = 0, squares = 0;
  for (size_t i = 0; i < points.x.size(); ++i) {
    const double noise = points.y[i] - (2.5 * points.x[i] - 0.75);
    sum += noise;
    squares += noise * noise;
  }
  EXPECT_NEAR(sum / 20000, 0, 0.011);
  EXPECT_NEAR(std::sqrt(squares / 20000), 0.5, 0.008);
}

TEST(LinearDatasetTest, DependsOnlyOnTheSeed) {
  EXPECT_EQ(AllOf(LineSpec(0.5, 100)).y, AllOf(LineSpec(0.5, 100)).y);
  EXPECT_NE(AllOf(LineSpec(0.5, 100)).y, AllOf(LineSpec(0.5, 100, 4)).y);
}

TEST(LinearDatasetTest, RefusesNoSamplesAndOtherModels) {
  EXPECT_EQ(ReasonOf(OpenDataset(LineSpec(0, 0), LineGraph()).status()), "DATA_TOO_SMALL");
  v1::Graph graph = LineGraph();
  graph.mutable_inputs(0)->set_shape(1, 2);
  absl::Status status = OpenDataset(LineSpec(0, 5), graph).status();
  EXPECT_EQ(status.message(),
            "data.linear: the model's input is f32[-1, 2], a line gives f32[-1, 1]");
}

TEST(LinearDatasetTest, NothingIsHeldOut) {
  EXPECT_EQ((*OpenDataset(LineSpec(0, 5), LineGraph()))->evaluation_samples(), 0);
}

}  // namespace
}  // namespace muster::linear_dataset_test
