#include "lib/data/source/linear_dataset.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "kernels/philox.h"
#include "lib/data/data_fault.h"
#include "lib/data/labelled_rows.h"
#include "lib/data/order/random_stream.h"
#include "lib/status/status.h"

namespace muster {
namespace {

class LinearDataset : public Dataset {
 public:
  LinearDataset(const v1::DataSpec& spec, LabelledRows rows)
      : line_(spec.linear()), seed_(spec.seed()), rows_(std::move(rows)) {}

  int64_t samples() const override { return line_.samples(); }
  int64_t evaluation_samples() const override { return 0; }

  absl::Status Read(absl::Span<const SampleRef> samples, Rows rows) const override {
    rows_.CheckSizes(rows, samples.size(), sizeof(float), sizeof(float));
    const absl::Span<std::byte> input = rows_.input(rows), target = rows_.target(rows);
    for (size_t row = 0; row < samples.size(); ++row) {
      const int64_t sample = samples[row].sample;
      CHECK(0 <= sample && sample < line_.samples()) << sample;
      const auto words =
          kernels::RandomWords(seed_, StreamOf(RandomStream::kLinearSamples, 0), sample);
      const float x = 2 * kernels::UnitUniform(words[0]) - 1;
      const float y = line_.slope() * x + line_.intercept() +
                      line_.noise() * kernels::StandardNormal(words[1], words[2]);
      if (!input.empty()) std::memcpy(input.data() + row * sizeof(float), &x, sizeof(float));
      if (!target.empty()) std::memcpy(target.data() + row * sizeof(float), &y, sizeof(float));
    }
    return absl::OkStatus();
  }

  absl::Status ReadEvaluation(int64_t, int64_t count, Rows) const override {
    CHECK_EQ(count, 0) << "a line has no held-out samples";
    return absl::OkStatus();
  }

 private:
  const v1::LinearData line_;
  const uint64_t seed_;
  const LabelledRows rows_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Dataset>> OpenLinearDataset(const v1::DataSpec& spec,
                                                                 const v1::Graph& graph) {
  RETURN_IF_ERROR(LabelledRows::Check(graph, "data.linear"));
  for (const char* name : {"input", "target"}) {
    if (!HasInput(graph, name, v1::DTYPE_F32, {-1, 1})) {
      return DataInvalid("data.linear",
                         absl::StrCat("the model's ", name, " is ", DescribeInput(graph, name),
                                      ", a line gives f32[-1, 1]"));
    }
  }
  if (spec.linear().samples() < 1) {
    return DataTooSmall("data.linear.samples",
                        absl::StrCat("must be at least 1 (is ", spec.linear().samples(), ")"));
  }
  return std::make_unique<LinearDataset>(spec, LabelledRows(graph));
}

}  // namespace muster
