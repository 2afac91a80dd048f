#include "lib/data/pipeline/input_pipeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "lib/data/data_fault.h"
#include "lib/data/order/sample_order.h"
#include "lib/data/stage_times.h"
#include "lib/engine/backends/backends.h"
#include "lib/status/status.h"
#include "lib/telemetry/trace.h"
#include "lib/text/byte_size.h"
#include "proto/muster/v1/graph.pb.h"

namespace muster::input_pipeline_test {
namespace {

// The input of a sample is its number and the epoch. Its target is the number.
class NumberedSamples : public Dataset {
 public:
  int64_t samples() const override { return 10; }
  int64_t evaluation_samples() const override { return 0; }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    ++batches_read;
    for (size_t i = 0; i < samples.size(); ++i) {
      const int64_t row[2] = {samples[i].sample, samples[i].epoch};
      std::memcpy(rows[0].data() + 16 * i, row, 16);
      std::memcpy(rows[1].data() + 8 * i, &samples[i].sample, 8);
    }
    return absl::OkStatus();
  }
  absl::Status ReadEvaluation(int64_t, int64_t, Rows) const override { return absl::OkStatus(); }

  mutable std::atomic<int64_t> batches_read = 0;
};

v1::Graph GraphOfNumbers() {
  v1::Graph graph;
  for (const int64_t elements : {4, 2}) {
    v1::GraphInput& input = *graph.add_inputs();
    input.set_name(elements == 4 ? "input" : "target");
    input.set_dtype(v1::DTYPE_I32);
    input.add_shape(-1);
    input.add_shape(elements);
  }
  return graph;
}

Device& Cpu() {
  static Device& cpu = *CreateDevice("cpu", /*threads=*/1).value().release();
  return cpu;
}

std::unique_ptr<InputPipeline> Pipeline(InputPipeline::Options options) {
  options.device = &Cpu();
  return InputPipeline::Create(std::move(options)).value();
}

TEST(InputPipelineTest, SkipsLeftOutBatches) {
  const v1::Graph graph = GraphOfNumbers();
  const NumberedSamples dataset;
  const InputPipeline::Options options{.dataset = &dataset,
                                       .graph = &graph,
                                       .order = SampleOrder::Full(7, 10, 4),
                                       .samples = 4,
                                       .first_step = 5,
                                       .batches = 2};
  const auto all = Pipeline(options);
  InputPipeline::Options without = options;
  without.left_out = {6};
  const auto some = Pipeline(without);
  auto content = [](const InputBatch& batch) {
    return std::vector<std::byte>(batch.rows[0].begin(), batch.rows[0].end());
  };
  EXPECT_EQ(content(*some->Next()), content(*all->Next()));
  ASSERT_TRUE(all->Next().ok());
  for (int64_t step = 6; step < 20; ++step) {
    const InputBatch batch = some->Next().value();
    EXPECT_EQ(batch.step, step);
    EXPECT_EQ(content(batch), content(*all->Next())) << "one batch later";
  }
}

TEST(InputPipelineTest, GivesTheSamplesOfEveryStepInOrder) {
  const v1::Graph graph = GraphOfNumbers();
  const NumberedSamples dataset;
  const auto pipeline = Pipeline({.dataset = &dataset,
                                  .graph = &graph,
                                  .order = SampleOrder::Full(7, 10, 4),
                                  .first_position = 1,
                                  .samples = 3,
                                  .first_step = 5,
                                  .batches = 2});
  for (int64_t step = 5; step < 100; ++step) {
    const InputBatch batch = pipeline->Next().value();
    const std::vector<SampleRef> expected = SampleOrder::Full(7, 10, 4).SamplesOfStep(step, 1, 3);
    ASSERT_EQ(batch.step, step);
    ASSERT_EQ(batch.rows[0].size(), 48);
    EXPECT_TRUE(batch.counted_targets.empty()) << "every target counts";
    for (int i = 0; i < 3; ++i) {
      int64_t row[2], target;
      std::memcpy(row, batch.rows[0].data() + 16 * i, 16);
      std::memcpy(&target, batch.rows[1].data() + 8 * i, 8);
      EXPECT_EQ(row[0], expected[i].sample);
      EXPECT_EQ(row[1], expected[i].epoch);
      EXPECT_EQ(target, expected[i].sample);
    }
  }
}

// Samples so large that the pipeline may use one thread per sample.
class LargeSamples : public Dataset {
 public:
  static constexpr int64_t kElements = 1 << 20;

  int64_t samples() const override { return 12; }
  int64_t evaluation_samples() const override { return 0; }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    ++parts_read;
    auto* to = reinterpret_cast<int32_t*>(rows[0].data());
    for (const auto [epoch, sample] : samples) {
      std::fill_n(to, kElements, static_cast<int32_t>(100 * epoch + sample));
      to += kElements;
    }
    EXPECT_EQ(reinterpret_cast<std::byte*>(to), rows[0].data() + rows[0].size());
    return absl::OkStatus();
  }
  absl::Status ReadEvaluation(int64_t, int64_t, Rows) const override { return absl::OkStatus(); }

  mutable std::atomic<int64_t> parts_read = 0;
};

TEST(InputPipelineTest, SeveralThreadsReadTheSameLargeBatchAsOne) {
  v1::Graph graph;
  v1::GraphInput& input = *graph.add_inputs();
  input.set_name("input");
  input.set_dtype(v1::DTYPE_I32);
  input.add_shape(-1);
  input.add_shape(LargeSamples::kElements);
  for (const int threads : {1, 3, 50}) {
    const LargeSamples dataset;
    const auto pipeline = Pipeline({.dataset = &dataset,
                                    .graph = &graph,
                                    .order = SampleOrder::Full(7, 12, 6),
                                    .first_position = 1,
                                    .samples = 5,
                                    .batches = 2,
                                    .threads = threads});
    for (int64_t step = 0; step < 4; ++step) {
      const InputBatch batch = pipeline->Next().value();
      const std::vector<SampleRef> expected = SampleOrder::Full(7, 12, 6).SamplesOfStep(step, 1, 5);
      const auto* at = reinterpret_cast<const int32_t*>(batch.rows[0].data());
      for (const auto [epoch, sample] : expected) {
        const auto value = static_cast<int32_t>(100 * epoch + sample);
        EXPECT_EQ(std::count(at, at + LargeSamples::kElements, value), LargeSamples::kElements)
            << threads << " threads, step " << step << ", sample " << sample;
        at += LargeSamples::kElements;
      }
    }
    EXPECT_GE(dataset.parts_read, 4 * std::min(threads, 5));
  }
}

TEST(InputPipelineTest, RejectsBatchesThatExceedMemoryAndNamesTheirBytes) {
  const v1::Graph graph = GraphOfNumbers();
  const NumberedSamples dataset;
  constexpr int64_t kSamples = int64_t{1} << 40;
  const auto pipeline = InputPipeline::Create({.dataset = &dataset,
                                               .graph = &graph,
                                               .device = &Cpu(),
                                               .order = SampleOrder::Full(0, kSamples, kSamples),
                                               .samples = kSamples,
                                               .batches = 2});
  EXPECT_TRUE(absl::IsResourceExhausted(pipeline.status())) << pipeline.status();
  EXPECT_EQ(ReasonOf(pipeline.status()), "MEMORY_EXHAUSTED");
  EXPECT_TRUE(absl::StrContains(pipeline.status().message(),
                                absl::StrCat("need ", FormatBytes(2 * 24 * kSamples), " of")))
      << pipeline.status();
}

TEST(InputPipelineTest, NeverReadsIntoTheBatchInUseOrBeyondItsBuffers) {
  const v1::Graph graph = GraphOfNumbers();
  const NumberedSamples dataset;
  {
    const auto pipeline = Pipeline({.dataset = &dataset,
                                    .graph = &graph,
                                    .order = SampleOrder::Full(0, 10, 10),
                                    .samples = 10,
                                    .batches = 3});
    for (int64_t step = 0; step < 20; ++step) {
      ASSERT_TRUE(pipeline->Next().ok());
      EXPECT_LE(dataset.batches_read, step + 3);
    }
  }
  EXPECT_LE(dataset.batches_read, 22);
}

TEST(InputPipelineTest, PeekReturnsTheNextBatch) {
  const v1::Graph graph = GraphOfNumbers();
  const NumberedSamples dataset;
  const auto pipeline = Pipeline({.dataset = &dataset,
                                  .graph = &graph,
                                  .order = SampleOrder::Full(0, 10, 4),
                                  .samples = 4,
                                  .batches = 2});
  for (int64_t step = 0; step < 50; ++step) {
    ASSERT_TRUE(pipeline->Next().ok());
    // Next() freed the buffer, so the reader fills it eventually.
    std::optional<InputBatch> next;
    while (!(next = pipeline->Peek())) std::this_thread::yield();
    EXPECT_EQ(next->step, step + 1);
    const std::vector<std::byte> seen(next->rows[0].begin(), next->rows[0].end());
    int64_t first;
    std::memcpy(&first, seen.data(), sizeof(first));
    EXPECT_EQ(first, SampleOrder::Full(0, 10, 4).SamplesOfStep(step + 1, 0, 4)[0].sample);
  }
}

// One sample is damaged, and so are all held-out samples.
class Damaged : public NumberedSamples {
 public:
  explicit Damaged(int64_t sample) : sample_(sample) {}
  int64_t evaluation_samples() const override { return 3; }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    for (const SampleRef& ref : samples) {
      if (ref.sample == sample_) return DataDamaged("data.test", "file", sample_, 0, "is damaged");
    }
    return NumberedSamples::Read(samples, rows);
  }
  absl::Status ReadEvaluation(int64_t first, int64_t, Rows) const override {
    return DataDamaged("data.test", "file", first, 0, "is damaged");
  }

 private:
  const int64_t sample_;
};

TEST(InputPipelineTest, AFailedReadIsTheErrorOfItsStepAndOfAllLaterCalls) {
  const v1::Graph graph = GraphOfNumbers();
  constexpr int64_t kBadStep = 3;
  const Damaged dataset(
      SampleOrder::Full(7, 10, 2).SamplesOfStep(/*step=*/kBadStep + 1, 1, 1)[0].sample);
  const auto pipeline = Pipeline({.dataset = &dataset,
                                  .graph = &graph,
                                  .order = SampleOrder::Full(7, 10, 2),
                                  .samples = 2,
                                  .first_step = 1,
                                  .left_out = {0},
                                  .batches = 3});
  for (int64_t step = 1; step < kBadStep; ++step) EXPECT_EQ(pipeline->Next()->step, step);
  for (int call = 0; call < 2; ++call) {
    const absl::StatusOr<InputBatch> failed = pipeline->Next();
    EXPECT_EQ(ReasonOf(failed.status()), "DATA_DAMAGED") << failed.status();
    EXPECT_FALSE(pipeline->Peek().has_value());
  }
}

// The first sample of step 0 waits until a sample of step 1 begins.
class Slow : public NumberedSamples {
 public:
  explicit Slow(int64_t first) : first_(first) {}
  bool is_slow() const override { return true; }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    EXPECT_EQ(samples.size(), 1);
    const int64_t read = ++begun_;
    if (samples[0].sample == first_ && samples[0].epoch == 0) third_began_.WaitForNotification();
    if (read == 3) third_began_.Notify();
    return NumberedSamples::Read(samples, rows);
  }

 private:
  const int64_t first_;
  mutable std::atomic<int64_t> begun_ = 0;
  mutable absl::Notification third_began_;
};

TEST(InputPipelineTest, ThreadsReadSlowSamplesOneByOneAcrossBatches) {
  const v1::Graph graph = GraphOfNumbers();
  const Slow dataset(SampleOrder::Full(7, 10, 2).SamplesOfStep(0, 0, 1)[0].sample);
  const auto pipeline = Pipeline({.dataset = &dataset,
                                  .graph = &graph,
                                  .order = SampleOrder::Full(7, 10, 2),
                                  .samples = 2,
                                  .batches = 2,
                                  .threads = 2});
  for (int64_t step = 0; step < 20; ++step) {
    const InputBatch batch = pipeline->Next().value();
    const std::vector<SampleRef> expected = SampleOrder::Full(7, 10, 2).SamplesOfStep(step, 0, 2);
    for (int i = 0; i < 2; ++i) {
      int64_t sample;
      std::memcpy(&sample, batch.rows[0].data() + 16 * i, sizeof(sample));
      EXPECT_EQ(sample, expected[i].sample) << step;
    }
  }
}

TEST(InputPipelineTest, TheTraceHasTheLifeOfEachBatch) {
  const v1::Graph graph = GraphOfNumbers();
  const NumberedSamples dataset;
  Trace trace;
  ASSERT_TRUE(trace.Start({.events_max = 100}));
  {
    const auto pipeline = Pipeline({.dataset = &dataset,
                                    .graph = &graph,
                                    .order = SampleOrder::Full(0, 10, 4),
                                    .samples = 4,
                                    .batches = 2,
                                    .trace = &trace,
                                    .track = 3});
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(pipeline->Next().ok());
  }
  std::map<int64_t, int64_t> begun;  // steps by id
  int ended = 0;
  for (const Trace::Event& event : trace.Stop().events) {
    EXPECT_STREQ(event.name, "read batch");
    EXPECT_EQ(event.track, 3);
    // The coordinator keeps events of the traced steps alone, so each event names its step.
    ASSERT_STREQ(event.arguments[0].name, "step");
    const int64_t step = event.arguments[0].value;
    if (event.kind == Trace::Kind::kBegin) {
      EXPECT_TRUE(begun.emplace(event.id, step).second) << "one id for each batch";
    } else {
      EXPECT_EQ(begun[event.id], step);
      ++ended;
    }
  }
  EXPECT_GE(ended, 3);
}

TEST(InputPipelineTest, ACancelledPipelineReadsNoMore) {
  const v1::Graph graph = GraphOfNumbers();
  const NumberedSamples dataset;
  const std::atomic<bool> cancelled = true;
  const auto pipeline = Pipeline({.dataset = &dataset,
                                  .graph = &graph,
                                  .order = SampleOrder::Full(0, 10, 4),
                                  .samples = 4,
                                  .cancelled = &cancelled});
  EXPECT_TRUE(absl::IsCancelled(pipeline->Next().status()));
  EXPECT_EQ(dataset.batches_read, 0);
}

// Spends time on each stage.
class Staged : public NumberedSamples {
 public:
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    for (const InputStage stage : {InputStage::kOpen, InputStage::kRead, InputStage::kDecode,
                                   InputStage::kResample, InputStage::kAugment}) {
      const StageScope scope(stage);
      const auto begin = std::chrono::steady_clock::now();
      while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(10)) {
      }
    }
    CountReadBytes(100 * std::ssize(samples));
    return NumberedSamples::Read(samples, rows);
  }
};

TEST(InputPipelineTest, TimingAddsUpTheStagesOfAllThreads) {
  const v1::Graph graph = GraphOfNumbers();
  const Staged dataset;
  const auto pipeline = Pipeline({.dataset = &dataset,
                                  .graph = &graph,
                                  .order = SampleOrder::Full(0, 10, 4),
                                  .samples = 4,
                                  .batches = 2,
                                  .threads = 3});
  for (int step = 0; step < 10; ++step) ASSERT_TRUE(pipeline->Next().ok());
  const v1::InputTiming timing = pipeline->timing();
  EXPECT_GE(timing.samples(), 40);
  EXPECT_LE(timing.samples(), 44) << "one batch is ahead";
  EXPECT_EQ(timing.read_bytes(), 100 * timing.samples());
  EXPECT_EQ(timing.threads(), 3);
  const double least = 10e-6 * 10;
  EXPECT_GE(timing.open_seconds(), least);
  EXPECT_GE(timing.read_seconds(), least);
  EXPECT_GE(timing.decode_seconds(), least);
  EXPECT_GE(timing.resample_seconds(), least);
  EXPECT_GE(timing.augment_seconds(), least);
  // Both batches are read soon, so the threads wait for room.
  while (pipeline->timing().room_seconds() <= timing.room_seconds()) std::this_thread::yield();
}

struct SampleRangeOfTest {
  int64_t first, count;
};

// Sample s has the targets s % 5 and (s + 1) % 5. Targets that equal 3 do not count.
class Labelled : public Dataset {
 public:
  int64_t samples() const override { return 12; }
  int64_t evaluation_samples() const override { return 12; }
  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    for (size_t i = 0; i < samples.size(); ++i) {
      const int64_t sample = samples[i].sample;
      const int32_t ids[2] = {static_cast<int32_t>(sample % 5),
                              static_cast<int32_t>((sample + 1) % 5)};
      std::memcpy(rows[1].data() + 8 * i, ids, 8);
    }
    return absl::OkStatus();
  }
  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    std::vector<int64_t> samples(count);
    std::iota(samples.begin(), samples.end(), first);
    return Read(SamplesOf(0, samples), rows);
  }
};

v1::Graph GraphWithIgnoredTargets() {
  v1::Graph graph;
  v1::GraphInput& logits = *graph.add_inputs();
  logits.set_name("logits");
  logits.set_dtype(v1::DTYPE_F32);
  for (int64_t size : {-1, 2, 5}) logits.add_shape(size);
  v1::GraphInput& target = *graph.add_inputs();
  target.set_name("target");
  target.set_dtype(v1::DTYPE_I32);
  for (int64_t size : {-1, 2}) target.add_shape(size);
  v1::Node& loss = *graph.add_nodes();
  loss.set_name("loss");
  loss.set_op("SoftmaxCrossEntropy");
  for (const char* name : {"logits", "target"}) loss.add_inputs(name);
  for (const char* name : {"loss", "lse"}) loss.add_outputs(name);
  (*loss.mutable_attributes())["ignore_index"].set_i(3);
  graph.set_loss("loss");
  return graph;
}

TEST(InputPipelineTest, CountsTheTargetsOfTheWholeBatchForEveryShare) {
  const v1::Graph graph = GraphWithIgnoredTargets();
  const Labelled dataset;
  for (const SampleRangeOfTest share : {SampleRangeOfTest{0, 6}, {0, 2}, {2, 4}}) {
    const auto pipeline = Pipeline({.dataset = &dataset,
                                    .graph = &graph,
                                    .order = SampleOrder::Full(7, 12, 6),
                                    .first_position = share.first,
                                    .samples = share.count});
    for (int64_t step = 0; step < 20; ++step) {
      const InputBatch batch = pipeline->Next().value();
      int64_t counted = 0;
      for (const auto [epoch, sample] : SampleOrder::Full(7, 12, 6).SamplesOfStep(step, 0, 6)) {
        counted += (sample % 5 != 3) + ((sample + 1) % 5 != 3);
      }
      ASSERT_EQ(batch.counted_targets.size(), 2);
      EXPECT_EQ(batch.counted_targets[0], 0);
      EXPECT_EQ(batch.counted_targets[1], counted) << step;
    }
  }
  EXPECT_EQ(*CountEvaluationTargets(dataset, graph), (std::vector<int64_t>{0, 24 - 4}));
  EXPECT_TRUE(CountEvaluationTargets(dataset, GraphOfNumbers())->empty());
  EXPECT_EQ(ReasonOf(CountEvaluationTargets(Damaged(0), graph).status()), "DATA_DAMAGED");
}

}  // namespace
}  // namespace muster::input_pipeline_test
