// The pushes for a shard's chunks: the gradient of each rank, and the sum of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/optimizer/optimizer.h"
#include "lib/plan/numbers.h"
#include "lib/shard/chunks/payload_tickets.h"
#include "lib/shard/core/chunk_treatment.h"
#include "lib/shard/core/gradient_store.h"
#include "lib/shard/gate/gate.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

// Returns the kernels' type of a payload's elements. Requires: values or gradients have this type.
kernels::FloatType FloatTypeOf(WireDType dtype);

// The gate decides which pushes are taken and which make an update. This class keeps their content
// until the update. A gradient stays where it was received: in the GradientStore, or in its
// sender's memory, which a lease keeps.
//
// Gradients are summed in rank order whatever their order of arrival, or along the job's sum tree
// (lib/plan/sum_tree.h), so a sum has the same bits in every run.
//
// Thread-compatible: runs on the shard's thread, has no lock, and never blocks. Nothing is
// allocated after construction.
class ShardPushes {
 public:
  // The content of a push besides its gradient.
  struct Terms {
    bool has_gradient = true;  // else the rank has none in this step
    // Only with a program.
    double learning_rate = 0;
    double weight = 1;
    // Only at a replica: how its shard applied the sum.
    bool skipped = false;
    double factor = 1;
    double trust_ratio = 1;
  };
  // Gradients for the kernels. Valid until the next call of a Gather function.
  struct Gathered {
    const kernels::Gradient* gradients = nullptr;
    int count = 0;
    const uint8_t* joins = nullptr;  // see kernels::kOpenSumsMax
  };

  // `plan` is the plan of shard `shard`. It and `chunks` must outlive this object.
  ShardPushes(const v1::JobPlan& plan, ShardIndex shard, const ChunkTreatments& chunks,
              std::unique_ptr<GradientStore> store);

  // ---- one push: Check(), Begin(), End(), Take()

  // Returns why the shard cannot take a push with this header; kNone if it can.
  RefusalReason Check(LocalChunk chunk, const WireHeader& header) const;
  // Begins to receive a payload. Returns its place.
  absl::Span<std::byte> Begin(LocalChunk chunk, Rank rank);
  // Ends it. Returns false if it had ended before.
  bool End(LocalChunk chunk, Rank rank);
  // Keeps a push that has arrived for the chunk at `version`. Returns kBadPayload if no encoder
  // makes such a payload, kOtherLearningRate if another rank has named another one for the same
  // update. `lease` keeps a payload that is still in its sender's memory.
  RefusalReason Take(LocalChunk chunk, int64_t version, const WireHeader& header,
                     absl::Span<const std::byte> payload, PayloadLease lease);
  // Returns the payload of a push that no update needs.
  void Drop(LocalChunk chunk, Rank rank) { pushes_(chunk, rank).lease = {}; }
  // Returns all payloads.
  void DropAll();
  // Frees the memory for gradients. Nothing may be received afterwards.
  void FreeMemory() { store_.reset(); }
  const GradientStore& store() const { return *store_; }
  // True if no payload is being received.
  bool idle() const { return tickets_.all_back(); }

  // ---- the due update of a chunk

  // Every rank of a job without a program has a gradient.
  bool HasGradient(LocalChunk chunk, const ChunkUpdate& update) const;
  // The terms of the update's first rank. All ranks of an update name the same learning rate, and a
  // replica has one rank.
  const Terms& TermsOf(LocalChunk chunk, const ChunkUpdate& update) const {
    return pushes_(chunk, update.ranks[0]).terms;
  }
  // Returns the factor that turns the sum of the update's gradients into their mean; at a replica,
  // into what its shard has applied. A rank without a gradient counts as one with zeros. A
  // statistic is a value, so its mean is over the ranks that have one. Requires: HasGradient().
  double MeanFactor(LocalChunk chunk, const ChunkUpdate& update) const;
  // Returns the update's gradients, or their sum after Sum().
  Gathered Gather(LocalChunk chunk, const ChunkUpdate& update);
  // Returns the update's gradients, summed and multiplied unless the factor of their mean is 1.
  Gathered GatherMean(LocalChunk chunk, const ChunkUpdate& update);
  // Writes the sum to `out`. Returns its sum of squares.
  static double Sum(const Gathered& gathered, float* out, int64_t elements);
  // Sums the gradients in the store and returns their payloads. Returns the chunk's part of the
  // squared norm of the job's mean gradient.
  double Sum(LocalChunk chunk, const ChunkUpdate& update);
  bool is_summed(LocalChunk chunk) const { return chunks_[chunk].summed; }
  // f32[elements]: the place of the sum. A shard with a replica sends it from there.
  absl::Span<float> SumPlace(LocalChunk chunk, const ChunkUpdate& update) const;
  // Returns the chunk's part of a squared gradient norm. A statistic does not count, but a
  // non-finite statistic must make the norm non-finite.
  double PartOfNorm(LocalChunk chunk, double sum_of_squares) const;
  // Records the sum of squares of the update's mean gradient, for answers.
  void KeepSquares(LocalChunk chunk, const ChunkUpdate& update, double sum_of_squares);
  // Returns the squares of the last update; if pushes are updates, of the rank's last push.
  double squares(LocalChunk chunk, Rank rank) const {
    return are_updates_ ? pushes_(chunk, rank).sum_of_squares : chunks_[chunk].sum_of_squares;
  }
  // Records that the update was applied. Returns its payloads, and late ones that the step was
  // closed without.
  void Applied(LocalChunk chunk, const ChunkUpdate& update);

 private:
  using Tickets = PayloadTickets<ShardPushes>;
  struct Push {
    Tickets::Ticket receiving;
    kernels::Gradient gradient;
    PayloadLease lease;
    double sum_of_squares = 0;  // only if pushes are updates
    Terms terms;
  };
  struct Chunk {
    bool summed = false;  // the sum is in SumPlace()
    double sum_of_squares = 0;
    // bsp, with a program: what the pushes of the current step must name; nullopt: none is here.
    std::optional<double> learning_rate;
  };

  bool TakeGradient(LocalChunk chunk, Rank rank, absl::Span<const std::byte> payload,
                    PayloadLease lease);
  const uint8_t* JoinsOf(int count) const;
  void ReturnLeases(LocalChunk chunk, const ChunkUpdate& update);

  const ChunkTreatments& treatments_;
  std::unique_ptr<GradientStore> store_;
  const NumbersBelow<Rank> ranks_;
  const bool has_program_;  // model.external: pushes name learning rates and weights
  const bool is_replica_;
  const bool has_replica_;
  const bool are_updates_;  // see PushesAreUpdates()
  // How the gradients of all ranks are added; see kernels::kOpenSumsMax. Empty: in rank order.
  const std::vector<uint8_t> joins_;
  Tickets tickets_{this};  // outlives the tickets below
  NumberedVector<LocalChunk, Chunk> chunks_;
  NumberedTable<LocalChunk, Rank, Push> pushes_;
  std::vector<kernels::Gradient> gradients_;  // of the update that was gathered last
};

}  // namespace muster
