#include "lib/checkpoint/known_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

struct Slice {
  int chunk;
  int slot;
  int64_t offset_bytes;
  std::vector<float> values;
};

std::vector<Slice> CutSlices(const v1::JobPlan& plan, int edition, std::mt19937& random) {
  const int slots = 1 + OptimizerSlotNames(plan.spec().training().optimizer()).size();
  std::vector<Slice> slices;
  for (int c = 0; c < plan.chunks_size(); ++c) {
    const v1::PlanChunk& chunk = plan.chunks(c);
    for (int slot = 0; slot < slots; ++slot) {
      for (int64_t at = 0; at < chunk.elements();) {
        const int64_t count = std::min<int64_t>(1 + random() % 100, chunk.elements() - at);
        Slice slice{c, slot, at * kFloatBytes, {}};
        for (int64_t i = 0; i < count; ++i) {
          slice.values.push_back(
              KnownValue(edition, slot, chunk.parameter(), chunk.offset() + at + i));
        }
        slices.push_back(std::move(slice));
        at += count;
      }
    }
  }
  for (size_t i = slices.size(); i-- > 0;) {
    if (random() % 4 == 0) slices.push_back(slices[i]);
  }
  std::shuffle(slices.begin(), slices.end(), random);
  return slices;
}

}  // namespace

v1::JobPlan KnownPlan(const std::vector<std::vector<int64_t>>& shapes, bool slots) {
  v1::JobPlan plan;
  plan.set_job("known-1");
  plan.mutable_spec()->set_name("known");
  plan.mutable_spec()->mutable_data()->set_batch_size(16);
  plan.mutable_spec()->mutable_data()->set_seed(7);
  v1::Optimizer& optimizer = *plan.mutable_spec()->mutable_training()->mutable_optimizer();
  if (slots) {
    optimizer.mutable_adam()->set_learning_rate(3e-3);
  } else {
    optimizer.mutable_sgd()->set_learning_rate(0.1);
  }
  for (const std::vector<int64_t>& shape : shapes) {
    v1::Parameter& parameter = *plan.mutable_graph()->add_parameters();
    parameter.set_name(absl::StrCat("p", plan.graph().parameters_size() - 1));
    parameter.mutable_shape()->Add(shape.begin(), shape.end());
  }
  plan.add_shards();
  for (v1::PlanChunk& chunk : CutIntoChunks(plan.graph(), 1024))
    *plan.add_chunks() = std::move(chunk);
  return plan;
}

v1::JobPlan KnownPlan() { return KnownPlan({{30, 33}, {}, {17}}); }

float KnownValue(int edition, int slot, int parameter, int64_t element) {
  return edition * 1e6f + slot * 1e5f + parameter * 1e4f + element;
}

absl::Status WriteKnownSlices(CheckpointWriter& writer, const v1::JobPlan& plan, int edition,
                              int threads, uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<Slice> slices = CutSlices(plan, edition, random);
  std::vector<absl::Status> results(threads);
  auto write_share = [&](int thread) {
    for (size_t i = thread; i < slices.size(); i += threads) {
      const Slice& slice = slices[i];
      results[thread].Update(
          writer.WriteSlice(slice.chunk, slice.slot, slice.offset_bytes,
                            {reinterpret_cast<const std::byte*>(slice.values.data()),
                             slice.values.size() * sizeof(float)}));
    }
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(write_share, thread);
    write_share(0);
  }
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::StatusOr<v1::Checkpoint> WriteKnownCheckpoint(const std::string& directory,
                                                    const v1::JobPlan& plan, int64_t step,
                                                    int edition) {
  ASSIGN_OR_RETURN(
      auto writer,
      CheckpointWriter::Create(
          plan, {.directory = directory, .id = "a", .step = step, .total_steps = 100}));
  RETURN_IF_ERROR(WriteKnownSlices(*writer, plan, edition));
  return writer->Commit();
}

absl::StatusOr<int> ReadKnownCheckpoint(const std::string& path, const v1::JobPlan& plan) {
  ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path));
  RETURN_IF_ERROR(reader->Verify());
  RETURN_IF_ERROR(reader->CheckFits(plan.graph()));
  std::vector<std::string> slots = OptimizerSlotNames(plan.spec().training().optimizer());
  slots.insert(slots.begin(), "");
  int edition = -1;
  for (int p = 0; p < plan.graph().parameters_size(); ++p) {
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      std::vector<float> values(ElementCount(plan.graph().parameters(p)));
      RETURN_IF_ERROR(
          reader->Read(plan.graph().parameters(p).name(), slots[slot], 0, absl::MakeSpan(values)));
      if (edition < 0) edition = values[0] / 1e6f;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] != KnownValue(edition, slot, p, i)) {
          return absl::DataLossError(
              absl::StrCat("p", p, " slot ", slot, " element ", i, " is ", values[i]));
        }
      }
    }
  }
  return edition;
}

std::string TestFolder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string path =
      absl::StrCat(testing::TempDir(), "/", test->test_suite_name(), ".", test->name());
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteWhole(const std::string& path, absl::string_view content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), content.size());
  CHECK(file.good()) << path;
}

}  // namespace muster
