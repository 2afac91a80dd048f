#include "lib/shard/chunks/shard_assembly.h"

#include <glog/logging.h>

#include <cstring>
#include <utility>

#include "lib/shard/chunks/plan_credentials.h"

namespace muster {

ShardAssembly::ShardAssembly(const v1::JobPlan& plan, ShardIndex shard, Options options)
    : options_(std::move(options)),
      header_{.generation = plan.generation(),
              .job = SessionOf(plan, kFirstShard),
              .rank = static_cast<uint32_t>(shard)},
      receiving_(options_.places.size()) {}

WireHeader ShardAssembly::Header(MessageKind kind, int64_t step, size_t bytes) const {
  WireHeader header = header_;
  header.kind = kind;
  header.step = step;
  header.length = bytes;
  return header;
}

void ShardAssembly::Report(int64_t step, absl::Span<const std::byte> report) {
  CHECK(!reporting_);
  if (is_first()) {
    const absl::Span<std::byte> place = Place(kFirstShard, report.size());
    CHECK_EQ(place.size(), report.size());
    std::memcpy(place.data(), report.data(), report.size());
    return Arrived(kFirstShard, step);
  }
  reporting_ = true;
  options_.send(kFirstShard, Header(options_.report, step, report.size()), report,
                [ticket = tickets_.Take()](const absl::Status&) mutable {
                  ShardAssembly& assembly = ticket.owner();
                  ticket.GiveBack();
                  // Cleared first, because reported() may send the next report.
                  assembly.reporting_ = false;
                  assembly.options_.reported();
                });
}

absl::Span<std::byte> ShardAssembly::PlaceDecision(absl::Span<std::byte> memory) {
  if (receiving_decision_) return {};
  receiving_decision_ = tickets_.Take();
  return memory;
}

bool ShardAssembly::DecisionArrived() {
  const Tickets::Ticket received = std::move(receiving_decision_);
  return static_cast<bool>(received);
}

absl::Span<std::byte> ShardAssembly::Place(ShardIndex shard, uint64_t bytes) {
  if (!receiving_.Has(shard) || receiving_[shard]) return {};
  const absl::Span<std::byte> place = options_.places[shard];
  if (bytes != place.size() || place.empty()) return {};
  receiving_[shard] = tickets_.Take();
  return place;
}

void ShardAssembly::Arrived(ShardIndex shard, int64_t step) {
  if (!receiving_[shard]) return;  // ShardLost() gave it up
  receiving_[shard].GiveBack();
  options_.arrived(shard, step);
}

void ShardAssembly::Lost(ShardIndex shard) { receiving_[shard].GiveBack(); }

void ShardAssembly::Tell(int64_t step, double scalar, absl::Span<const std::byte> decision) {
  WireHeader header = Header(options_.decision, step, decision.size());
  header.scalar = scalar;
  for (const ShardIndex shard : options_.places.numbers()) {
    if (shard == kFirstShard || options_.places[shard].empty()) continue;
    ++telling_;
    options_.send(shard, header, decision, [ticket = tickets_.Take()](const absl::Status&) mutable {
      ShardAssembly& assembly = ticket.owner();
      ticket.GiveBack();
      if (--assembly.telling_ == 0) assembly.options_.told();
    });
  }
}

void ShardAssembly::ShardLost(ShardIndex shard) {
  if (receiving_.Has(shard)) receiving_[shard].GiveBack();
  if (shard == kFirstShard) receiving_decision_.GiveBack();
}

}  // namespace muster
