#include "lib/data/source/synthetic_dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/philox.h"
#include "lib/data/data_fault.h"
#include "lib/data/input_use.h"
#include "lib/data/order/random_stream.h"

namespace muster {
namespace {

// Each group of sixteen random bits selects one of these values: the middles of equal shares of the
// normal distribution. A lookup costs a tenth of computing a normal.
class NormalQuantiles {
 public:
  NormalQuantiles() : values_(1 << 16) {
    const size_t half = values_.size() / 2;
    for (size_t i = 0; i < half; ++i) {
      const auto value = static_cast<float>(Quantile((i + 0.5) / values_.size()));
      values_[i] = value;
      values_[values_.size() - 1 - i] = -value;
    }
  }

  float operator[](uint32_t bits) const { return values_[bits & 0xffff]; }

 private:
  // Finds a quantile below the median, by bisection.
  static double Quantile(double share) {
    double low = -8, high = 0;
    for (int i = 0; i < 40; ++i) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < share ? low : high) = middle;
    }
    return (low + high) / 2;
  }

  std::vector<float> values_;
};

class SyntheticDataset : public Dataset {
 public:
  SyntheticDataset(const v1::DataSpec& spec, const v1::Graph& graph)
      : inputs_(graph.inputs().begin(), graph.inputs().end()),
        uses_(UsesOfInputs(graph)),
        seed_(spec.seed()),
        samples_(spec.synthetic().samples()),
        held_out_(std::llround(static_cast<double>(samples_) * spec.synthetic().holdout())) {}

  int64_t samples() const override { return samples_; }
  int64_t evaluation_samples() const override { return held_out_; }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    CHECK_EQ(rows.size(), inputs_.size());
    for (size_t row = 0; row < samples.size(); ++row) {
      const int64_t sample = samples[row].sample;
      CHECK(0 <= sample && sample < samples_) << sample;
      MakeSample(sample, row, samples.size(), rows);
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t first, int64_t count, Rows rows) const override {
    CHECK_EQ(rows.size(), inputs_.size());
    CHECK(0 <= first && 0 <= count && count <= held_out_ - first)
        << first << " + " << count << " of " << held_out_;
    for (int64_t row = 0; row < count; ++row) {
      MakeSample(samples_ + first + row, row, count, rows);
    }
    return absl::OkStatus();
  }

 private:
  void MakeSample(int64_t sample, size_t row, size_t count, Rows rows) const {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].empty()) continue;
      const size_t bytes = RowBytes(inputs_[i]);
      CHECK_EQ(rows[i].size(), count * bytes);
      MakeRow(static_cast<int>(i), sample, rows[i].data() + row * bytes, bytes / 4);
    }
  }

  void MakeRow(int input, int64_t sample, std::byte* row, int64_t elements) const {
    const bool is_normal = inputs_[input].dtype() == v1::DTYPE_F32 && !uses_[input].is_probability;
    const uint64_t stream = StreamOf(RandomStream::kSyntheticSamples, input);
    // One call gives eight normals, or four ids.
    const int64_t per_call = is_normal ? 8 : 4;
    const int64_t calls = (elements + per_call - 1) / per_call;
    for (int64_t call = 0; call < calls; ++call) {
      const auto words =
          kernels::RandomWords(seed_, stream, static_cast<uint64_t>(sample) * calls + call);
      const int64_t first = call * per_call;
      const int64_t count = std::min(per_call, elements - first);
      std::byte* to = row + first * 4;
      if (is_normal) {
        MakeNormals(words, to, count);
      } else {
        MakeIds(input, words, to, count);
      }
    }
  }

  void MakeNormals(const std::array<uint32_t, 4>& words, std::byte* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal_[words[i / 2] >> (i % 2 * 16)];
      std::memcpy(to + i * sizeof(value), &value, sizeof(value));
    }
  }

  void MakeIds(int input, const std::array<uint32_t, 4>& words, std::byte* to,
               int64_t count) const {
    const InputUse& use = uses_[input];
    const uint64_t range = use.is_bounded() ? std::min<int64_t>(use.limit, 1u << 31) : 2;
    for (int64_t i = 0; i < count; ++i) {
      const auto id = static_cast<int32_t>(words[i] * range >> 32);  // range <= 2^31
      if (use.is_probability) {
        const auto value = static_cast<float>(id);
        std::memcpy(to + i * sizeof(value), &value, sizeof(value));
      } else {
        std::memcpy(to + i * sizeof(id), &id, sizeof(id));
      }
    }
  }

  const std::vector<v1::GraphInput> inputs_;
  const std::vector<InputUse> uses_;
  const uint64_t seed_;
  const int64_t samples_;
  const int64_t held_out_;
  const NormalQuantiles normal_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenSyntheticDataset(const v1::DataSpec& spec,
                                                                    const v1::Graph& graph) {
  const v1::SyntheticData& synthetic = spec.synthetic();
  if (synthetic.samples() < 1) {
    return DataTooSmall("data.synthetic.samples",
                        absl::StrCat("must be at least 1 (is ", synthetic.samples(), ")"));
  }
  if (!(synthetic.holdout() >= 0 && synthetic.holdout() <= 0.5)) {
    return DataInvalid("data.synthetic.holdout",
                       absl::StrCat("must be in [0, 0.5] (is ", synthetic.holdout(), ")"));
  }
  if (graph.inputs().empty()) return DataInvalid("data.synthetic", "the model reads no data");
  return std::make_unique<SyntheticDataset>(spec, graph);
}

}  // namespace muster
