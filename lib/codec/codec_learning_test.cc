// Trains with every codec, without a cluster: workers of a small logistic regression pack their
// gradients, and a server sums the decoded ones.
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "lib/codec/codec.h"
#include "lib/codec/one_chunk_plan.h"

namespace muster::codec_learning_test {
namespace {

constexpr int kWorkers = 3;
constexpr int kClasses = 20;
constexpr int kInputs = 60;
constexpr int kSamples = 120;  // per worker; every step uses all of them
constexpr int kSteps = 400;
constexpr float kLearningRate = 0.5;

struct Samples {
  std::vector<float> inputs;  // [kSamples, kInputs]
  std::vector<int> classes;
};

// Points around one centre per class; the classes overlap.
Samples MakeSamples(int seed) {
  std::mt19937 centre_random(99), random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> centres(kClasses * kInputs);
  for (float& x : centres) x = 0.3f * normal(centre_random);
  Samples samples;
  for (int s = 0; s < kSamples; ++s) {
    samples.classes.push_back(static_cast<int>(random() % kClasses));
    for (int i = 0; i < kInputs; ++i) {
      samples.inputs.push_back(centres[samples.classes[s] * kInputs + i] + normal(random));
    }
  }
  return samples;
}

// Returns the mean loss over the samples, and adds its gradient to `gradient` [kClasses, kInputs].
double LossAndGradient(const Samples& samples, const std::vector<float>& weights,
                       std::vector<float>& gradient) {
  double loss = 0;
  for (int s = 0; s < kSamples; ++s) {
    const float* x = &samples.inputs[s * kInputs];
    std::vector<double> odds(kClasses);
    double total = 0;
    for (int c = 0; c < kClasses; ++c) {
      double logit = 0;
      for (int i = 0; i < kInputs; ++i) logit += weights[c * kInputs + i] * x[i];
      total += odds[c] = std::exp(logit);
    }
    const int wanted = samples.classes[s];
    loss -= std::log(odds[wanted] / total) / kSamples;
    for (int c = 0; c < kClasses; ++c) {
      const float slope = static_cast<float>((odds[c] / total - (c == wanted)) / kSamples);
      for (int i = 0; i < kInputs; ++i) gradient[c * kInputs + i] += slope * x[i];
    }
  }
  return loss;
}

// Returns the loss after kSteps of gradient descent.
double TrainedLoss(const WireFormat& format) {
  std::vector<Samples> data;
  std::vector<std::unique_ptr<ChunkEncoder>> encoders;
  for (int w = 0; w < kWorkers; ++w) {
    data.push_back(MakeSamples(w));
    encoders.push_back(ChunkEncoder::Create(format, w));
  }
  std::vector<float> weights(kClasses * kInputs), decoded(weights.size());
  std::vector<std::byte> payload(format.bytes);
  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<float> sum(weights.size());
    loss = 0;
    for (int w = 0; w < kWorkers; ++w) {
      std::vector<float> gradient(weights.size());
      loss += LossAndGradient(data[w], weights, gradient) / kWorkers;
      encoders[w]->Encode(gradient, absl::MakeSpan(payload));
      EXPECT_TRUE(Decode(format, payload, absl::MakeSpan(decoded)).ok());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += decoded[i] / kWorkers;
    }
    for (size_t i = 0; i < weights.size(); ++i) weights[i] -= kLearningRate * sum[i];
  }
  return loss;
}

TEST(CodecLearningTest, EveryCodecReachesTheLossOfPlainGradients) {
  double plain = 0;
  for (const auto& [name, format] : FormatsOf(kClasses, kInputs)) {
    const double loss = TrainedLoss(format);
    if (name == "none") plain = loss;
    ASSERT_LT(plain, 0.75 * std::log(kClasses)) << "the model did not learn";
    EXPECT_LE(loss, (format.codec == WireCodec::kRaw ? 1.001 : 1.03) * plain) << name;
    RecordProperty(name, std::to_string(loss));
  }
}

}  // namespace
}  // namespace muster::codec_learning_test
