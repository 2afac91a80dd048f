#include "lib/shard/gate/make_gate.h"

#include <cstdint>
#include <numeric>
#include <utility>

#include "lib/plan/numbers.h"
#include "lib/shard/gate/backup_gate.h"
#include "lib/shard/gate/bsp_gate.h"
#include "lib/shard/gate/round_schedule.h"
#include "lib/shard/gate/staleness_gate.h"

namespace muster {
namespace {

NumberedVector<Rank, int64_t> SamplesOf(const v1::JobPlan& plan) {
  NumberedVector<Rank, int64_t> samples;
  for (const v1::PlanWorker& worker : plan.workers()) samples.emplace_back(worker.samples());
  return samples;
}

}  // namespace

bool PushesAreUpdates(const v1::JobPlan& plan) {
  return plan.spec().sync().mode() == v1::SSP || plan.spec().sync().mode() == v1::ASP;
}

std::unique_ptr<Gate> MakeGate(const v1::JobPlan& plan, int chunks, int trained_chunks) {
  const v1::SyncSpec& sync = plan.spec().sync();
  const NumberedVector<Rank, int64_t> samples = SamplesOf(plan);
  if (PushesAreUpdates(plan)) {
    const auto batch = std::accumulate(samples.begin(), samples.end(), 0.0);
    StalenessGate::Options options{
        .chunks = chunks, .first_step = plan.first_step(), .aware = sync.staleness_aware()};
    for (const int64_t share : samples) {
      options.shares.emplace_back(static_cast<double>(share) / batch);
    }
    // ASP keeps the default: unbounded.
    if (sync.mode() == v1::SSP) options.staleness = sync.staleness();
    return std::make_unique<StalenessGate>(std::move(options));
  }
  if (sync.backup_workers() > 0) {
    return std::make_unique<BackupGate>(BackupGate::Options{.chunks = chunks,
                                                            .trained_chunks = trained_chunks,
                                                            .samples = samples,
                                                            .first_step = plan.first_step()});
  }
  return std::make_unique<BspGate>(BspGate::Options{
      .chunks = chunks, .ranks = plan.workers_size(), .rounds = RoundSchedule::Of(plan)});
}

}  // namespace muster
