#include "lib/exchange/local_sgd_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/plan/parameter_table.h"
#include "lib/shard/chunks/optimizer_settings.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Elements of a block. The outputs of an update must not overlap its inputs, so the inputs are
// copied block by block. A block fits into the first-level cache.
constexpr int64_t kBlockElements = 2048;

void Scale(absl::Span<float> values, double factor) {
  const auto by = static_cast<float>(factor);
  for (float& value : values) value *= by;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSgdExchange>> LocalSgdExchange::Create(Options options) {
  ASSIGN_OR_RETURN(std::unique_ptr<PsExchange> averaging, PsExchange::Create(options.exchange));
  return absl::WrapUnique(new LocalSgdExchange(std::move(options), std::move(averaging)));
}

LocalSgdExchange::LocalSgdExchange(Options options, std::unique_ptr<PsExchange> averaging)
    : options_(std::move(options)),
      plan_(*options_.exchange.plan),
      share_(static_cast<double>(plan_.workers(ToInt(options_.exchange.rank)).samples()) /
             static_cast<double>(plan_.spec().data().batch_size())),
      settings_(OptimizerSettingsOf(plan_.spec().training().optimizer())),
      rounds_(RoundSchedule::Of(plan_)),
      chunks_(plan_.chunks_size()),
      chunks_of_parameter_(plan_.graph().parameters_size(), 0),
      parameter_updates_(plan_.graph().parameters_size()),
      averaging_(std::move(averaging)) {
  CHECK_EQ(options_.gradients.size(), chunks_of_parameter_.size());
  for (const v1::Parameter& parameter : plan_.graph().parameters()) {
    treatments_.push_back(TreatmentOf(plan_.spec().training(), parameter));
  }
  std::map<std::pair<int, int64_t>, ChunkId> at;  // chunks of values
  for (const ChunkId c : chunks_.numbers()) {
    const v1::PlanChunk& chunk = plan_.chunks(ToInt(c));
    if (chunk.slot() > 0) continue;
    at[{chunk.parameter(), chunk.offset()}] = c;
    ++chunks_of_parameter_[chunk.parameter()];
    if (!treatments_[chunk.parameter()].frozen) ++trained_chunks_;
  }
  for (const ChunkId c : chunks_.numbers()) {
    const v1::PlanChunk& chunk = plan_.chunks(ToInt(c));
    if (chunk.slot() == 0) continue;
    const auto values = at.find({chunk.parameter(), chunk.offset()});
    CHECK(values != at.end() && plan_.chunks(ToInt(values->second)).elements() == chunk.elements())
        << "chunk " << c << ": a slot is not cut like its values";
    chunks_[values->second].slots.push_back(c);
  }
}

absl::Status LocalSgdExchange::Connect(int64_t total_steps, std::vector<std::string> addresses) {
  rounds_.total_steps = total_steps;
  return averaging_->Connect(total_steps, std::move(addresses));
}

// ---------------------------------------------------------------- versions

// Returns whether the shards make `version`. The worker itself makes all other versions.
bool LocalSgdExchange::IsAveraged(int64_t version) const {
  return version <= plan_.first_step() || rounds_.EndsAt(version);
}

bool LocalSgdExchange::HasParameter(int parameter, int64_t version) const {
  if (treatments_[parameter].frozen) return averaging_->HasParameter(parameter, plan_.first_step());
  if (IsAveraged(version)) return averaging_->HasParameter(parameter, version);
  const int64_t updates = parameter_updates_[parameter].load(std::memory_order_acquire);
  return updates == (version - plan_.first_step()) * chunks_of_parameter_[parameter];
}

// Within a round no other worker is needed, but another thread of this worker may still be
// updating.
absl::Status LocalSgdExchange::AwaitParameter(int parameter, int64_t version) {
  if (treatments_[parameter].frozen) {
    return averaging_->AwaitParameter(parameter, plan_.first_step());
  }
  if (IsAveraged(version)) return averaging_->AwaitParameter(parameter, version);
  return averaging_->AwaitChange([&] { return HasParameter(parameter, version); },
                                 [&] {
                                   return absl::StrCat(
                                       "this worker has not made version ", version, " of '",
                                       plan_.graph().parameters(parameter).name(), "'");
                                 });
}

absl::Status LocalSgdExchange::AwaitVersion(int64_t version) {
  if (IsAveraged(version)) return averaging_->AwaitVersion(version);
  return averaging_->AwaitChange(
      [&] { return this->version() >= version; },
      [&] { return absl::StrCat("this worker has not made version ", version); });
}

absl::StatusOr<float> LocalSgdExchange::AwaitLossScale(int64_t version) {
  return averaging_->AwaitLossScale(version);
}

// A step that ends a round counts when its mean has arrived. That may be before the pushing thread
// has counted its last chunk.
int64_t LocalSgdExchange::version() const {
  int64_t own = plan_.first_step() + updates_.load(std::memory_order_acquire) / trained_chunks_;
  if (IsAveraged(own) && own > plan_.first_step()) --own;
  return std::max(averaging_->version(), own);
}

double LocalSgdExchange::GradientNorm(int64_t version) const {
  double squares = 0;
  for (const Chunk& chunk : chunks_) squares += chunk.squares[version & 1];
  // Rounded to float, because the last bits of the sum depend on how parameters are cut into
  // chunks.
  return static_cast<float>(std::sqrt(squares));
}

// ---------------------------------------------------------------- updates

absl::Status LocalSgdExchange::Push(ChunkId chunk, int64_t step) {
  const int parameter = plan_.chunks(ToInt(chunk)).parameter();
  if (treatments_[parameter].frozen) return absl::OkStatus();
  RETURN_IF_ERROR(averaging_->failure());
  Update(chunk, step);
  if (rounds_.EndsAt(step + 1)) RETURN_IF_ERROR(Average(chunk));
  averaging_->Change([&] {
    // Counted before the parameter's own updates. A thread that sees a version of every parameter,
    // without the lock, then also sees the version of the whole.
    updates_.fetch_add(1, std::memory_order_release);
    parameter_updates_[parameter].fetch_add(1, std::memory_order_release);
  });
  return absl::OkStatus();
}

absl::Span<float> LocalSgdExchange::TensorOf(ChunkId chunk) const {
  const v1::PlanChunk& planned = plan_.chunks(ToInt(chunk));
  const PsExchange::Options& exchange = options_.exchange;
  const auto& tensors =
      planned.slot() == 0 ? exchange.parameters : exchange.slots[planned.slot() - 1];
  return tensors[planned.parameter()].subspan(planned.offset(), planned.elements());
}

void LocalSgdExchange::Update(ChunkId chunk, int64_t step) {
  const v1::PlanChunk& planned = plan_.chunks(ToInt(chunk));
  const v1::Parameter& parameter = plan_.graph().parameters(planned.parameter());
  const absl::Span<float> gradient =
      options_.gradients[planned.parameter()].subspan(planned.offset(), planned.elements());
  if (parameter.has_statistic_momentum()) {
    Scale(gradient, 1 / share_);
    const absl::Span<float> values = TensorOf(chunk);
    const kernels::Gradient contribution{.elements = gradient.data()};
    const double squares =
        kernels::ApplyStatistic(values.data(), values.data(), &contribution, /*ranks=*/1,
                                parameter.statistic_momentum(), planned.elements());
    // A statistic is not part of the norm, but a non-finite statistic must make it non-finite.
    chunks_[chunk].squares[(step + 1) & 1] =
        std::isfinite(squares) ? 0 : std::numeric_limits<double>::quiet_NaN();
    return;
  }
  // Divided by the share like the gradient: the norm is that of the mean over this worker's
  // samples.
  chunks_[chunk].squares[(step + 1) & 1] =
      ApplyOptimizer(chunk, step, gradient) / (share_ * share_);
}

// Returns the sum of squares of the unscaled gradient.
double LocalSgdExchange::ApplyOptimizer(ChunkId chunk, int64_t step,
                                        absl::Span<const float> gradient) const {
  const v1::TrainingSpec& training = plan_.spec().training();
  const ParameterTreatment& treatment = treatments_[plan_.chunks(ToInt(chunk)).parameter()];
  kernels::OptimizerSettings settings = settings_;
  settings.weight_decay = treatment.WeightDecay(settings_.weight_decay);
  const double learning_rate =
      LearningRate(training, step, rounds_.total_steps) * treatment.learning_rate_factor;
  kernels::GradientClip clip{.factor = 1 / share_};
  if (training.clip().has_value()) clip.limit = training.clip().value();

  std::vector<absl::Span<float>> tensors = {TensorOf(chunk)};
  for (const ChunkId slot : chunks_[chunk].slots) tensors.push_back(TensorOf(slot));
  alignas(64) float before[1 + kernels::kOptimizerSlotsMax][kBlockElements];
  double squares = 0;
  for (int64_t begin = 0; begin < std::ssize(gradient); begin += kBlockElements) {
    const int64_t count = std::min(kBlockElements, std::ssize(gradient) - begin);
    for (size_t t = 0; t < tensors.size(); ++t) {
      std::memcpy(before[t], tensors[t].data() + begin, count * sizeof(float));
    }
    const kernels::Gradient part{.elements = gradient.data() + begin};
    kernels::OptimizerBuffers buffers{.gradients = &part,
                                      .ranks = 1,
                                      .values_in = before[0],
                                      .values_out = tensors[0].data() + begin};
    for (size_t t = 1; t < tensors.size(); ++t) {
      buffers.slots_in[t - 1] = before[t];
      buffers.slots_out[t - 1] = tensors[t].data() + begin;
    }
    squares += kernels::ApplyOptimizer(settings, learning_rate, step, buffers, count, clip);
  }
  return squares;
}

// Scales the values in place before they are sent; the mean overwrites them.
absl::Status LocalSgdExchange::Average(ChunkId chunk) {
  const int64_t round = averaging_->version();  // every chunk is at the round's first version
  Scale(TensorOf(chunk), share_);
  RETURN_IF_ERROR(averaging_->Push(chunk, round));
  for (const ChunkId slot : chunks_[chunk].slots) {
    Scale(TensorOf(slot), share_);
    RETURN_IF_ERROR(averaging_->Push(slot, round));
  }
  return absl::OkStatus();
}

}  // namespace muster
