#include "lib/shard/snapshot/checkpoint_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/sync_stream.h"
#include "lib/checkpoint/shared_files.h"
#include "lib/limits/limits.h"
#include "lib/status/grpc_status.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

constexpr auto kBackoffMin = std::chrono::milliseconds(100);
constexpr auto kBackoffMax = std::chrono::milliseconds(2000);
constexpr auto kLook = std::chrono::milliseconds(100);

// Returns whether the error comes from the connection or from a busy coordinator, and not from the
// coordinator's decision about the shard. A busy one refuses with TOO_MANY_CALLS. gRPC's own
// refusal has no reason, so ReasonOf() returns the name of its code.
bool CoordinatorAway(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  return absl::IsUnavailable(status) || absl::IsCancelled(status) || absl::IsAborted(status) ||
         absl::IsDeadlineExceeded(status) ||
         (absl::IsResourceExhausted(status) &&
          (reason == "RESOURCE_EXHAUSTED" || reason == "TOO_MANY_CALLS"));
}

void PauseUnlessStopped(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, stop, time, [] { return false; });
}

// Waits for `time`, or until the coordinator is back. While it is away, this waits inside gRPC.
// gRPC continues its attempts to connect only during such a wait; otherwise the first call after
// the coordinator's return may come five seconds late.
void AwaitCoordinator(grpc::Channel& channel, std::chrono::milliseconds time,
                      const std::stop_token& stop) {
  if (channel.GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) {
    return PauseUnlessStopped(time, stop);  // connected, but the coordinator is busy
  }
  for (auto waited = kLook; waited <= time && !stop.stop_requested(); waited += kLook) {
    if (channel.WaitForConnected(std::chrono::system_clock::now() + kLook)) return;
  }
}

// The number of bytes written between two syncs. Slices reported to the coordinator are then on the
// device, the coordinator sees a slow disk while it is slow, and the last sync is short.
constexpr int64_t kUnsyncedBytesMax = 64 << 20;

v1::WriteShardHeader HeaderOf(const v1::JobPlan& plan, const ShardSnapshot& snapshot) {
  v1::WriteShardHeader header;
  header.set_job(plan.job());
  header.set_generation(plan.generation());
  header.set_step(snapshot.step);
  header.set_shard(ToInt(snapshot.shard));
  header.set_snapshot(snapshot.id);
  *header.mutable_update_state() = snapshot.update_state;
  return header;
}

absl::Span<const std::byte> BytesOf(const ShardSnapshot::Piece& piece) {
  return {reinterpret_cast<const std::byte*>(piece.elements.data()),
          piece.elements.size() * sizeof(float)};
}

// Writes the snapshot into the files of `layout`, which are closed on return. Calls `tell` for
// every slice that is on the device; stops when it returns false.
absl::Status WriteFiles(const SharedFiles::Options& options,
                        const v1::WriteShardDirectResponse& layout, const ShardSnapshot& snapshot,
                        absl::FunctionRef<bool(const v1::WrittenSlice&)> tell) {
  ASSIGN_OR_RETURN(SharedFiles files, SharedFiles::Open(options, layout));
  absl::flat_hash_map<std::pair<int, int>, const v1::ChunkPlace*> places;  // key: chunk, slot
  for (const v1::ChunkPlace& place : layout.places()) {
    places[{place.chunk(), place.slot()}] = &place;
  }
  std::vector<v1::WrittenSlice> untold;
  auto sync_and_tell = [&]() -> absl::StatusOr<bool> {
    RETURN_IF_ERROR(files.Sync());
    return std::ranges::all_of(std::exchange(untold, {}), tell);
  };
  for (const ShardSnapshot::Piece& piece : snapshot.pieces) {
    const auto place = places.find({ToInt(piece.chunk), piece.slot});
    if (place == places.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the coordinator has no place for chunk ",
                                                     ToInt(piece.chunk), ", slot ", piece.slot));
    }
    const absl::Span<const std::byte> bytes = BytesOf(piece);
    for (int64_t offset = 0; offset < std::ssize(bytes); offset += limits::kSliceBytesMax) {
      const auto data = bytes.subspan(offset, limits::kSliceBytesMax);
      RETURN_IF_ERROR(
          files.WriteAt(place->second->file(), place->second->offset_bytes() + offset, data));
      v1::WrittenSlice& slice = untold.emplace_back();
      slice.set_chunk(ToInt(piece.chunk));
      slice.set_slot(piece.slot);
      slice.set_offset_bytes(offset);
      slice.set_size_bytes(std::ssize(data));
      slice.set_crc32c(Crc32c(data));
      if (files.unsynced_bytes() < kUnsyncedBytesMax) continue;
      ASSIGN_OR_RETURN(const bool wanted, sync_and_tell());
      if (!wanted) return absl::OkStatus();
    }
  }
  return sync_and_tell().status();
}

}  // namespace

CheckpointClient::CheckpointClient(CoordinatorTarget target, std::string checkpoint_root,
                                   absl::Duration call_max)
    : target_(std::move(target)),
      checkpoint_root_(std::move(checkpoint_root)),
      call_max_(call_max) {}

CheckpointClient::Connection CheckpointClient::Connect() const {
  absl::MutexLock lock(&mu_);
  if (connection_.channel == nullptr || connection_.address != target_.address()) {
    connection_.address = target_.address();
    connection_.channel = DialCoordinator(target_);
    connection_.stub = v1::MemberService::NewStub(connection_.channel);
  }
  return connection_;
}

absl::Status CheckpointClient::Retry(absl::string_view what, int64_t bytes, const Attempt& attempt,
                                     const std::stop_token& stop) const {
  const absl::Duration timeout =
      call_max_ + absl::Seconds(bytes / limits::kCheckpointBytesPerSecondMin);
  auto backoff = kBackoffMin;
  while (!stop.stop_requested()) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    const Connection connection = Connect();
    absl::Status status;
    {
      std::stop_callback cancel(stop, [&context] { context.TryCancel(); });
      status = attempt(*connection.stub, context);
    }
    if (status.ok() || !CoordinatorAway(status)) return status;
    if (stop.stop_requested()) break;
    const bool late = absl::IsDeadlineExceeded(status);
    LOG_EVERY_T(WARNING, 10) << what
                             << (late ? absl::StrCat(" has not ended after ",
                                                     absl::FormatDuration(timeout))
                                      : absl::StrCat(" broke off (", status.message(), ")"))
                             << "; trying again from the beginning";
    if (target_.addresses().size() > 1) {
      target_.PassOver(connection.address);
      PauseUnlessStopped(backoff, stop);
    } else {
      AwaitCoordinator(*connection.channel, backoff, stop);
    }
    backoff = std::min(backoff * 2, kBackoffMax);
  }
  return absl::CancelledError("the job was released");
}

absl::Status CheckpointClient::ReadShard(ParameterShard& shard, std::stop_token stop,
                                         const std::function<void(int64_t bytes)>& advanced) {
  const v1::JobPlan& plan = shard.plan();
  int64_t most = 0;  // of all attempts
  auto read = [&](int64_t bytes) {
    if (advanced && bytes > most) advanced(bytes - most);
    most = std::max(most, bytes);
  };
  return Retry(
      absl::StrCat("reading shard ", ToInt(shard.shard()), " of ", plan.job(), " from ",
                   plan.restore()),
      ParameterShard::BytesNeeded(plan, shard.shard()),
      [&](Stub& stub, grpc::ClientContext& context) {
        return ReadOnce(stub, shard, context, read);
      },
      stop);
}

absl::Status CheckpointClient::ReadOnce(Stub& stub, ParameterShard& shard,
                                        grpc::ClientContext& context,
                                        absl::FunctionRef<void(int64_t bytes)> read) {
  v1::ReadShardRequest request;
  request.set_job(shard.plan().job());
  request.set_generation(shard.plan().generation());
  request.set_shard(ToInt(shard.shard()));
  shard.BeginRestore();
  int64_t bytes = 0;
  auto reader = stub.ReadShard(&context, request);
  for (v1::ShardSlice slice; reader->Read(&slice);) {
    if (absl::Status restored = shard.RestoreSlice(slice); !restored.ok()) {
      context.TryCancel();
      reader->Finish();
      return Annotate(restored, shard.plan().restore());
    }
    bytes += static_cast<int64_t>(slice.data().size());
    read(bytes);
  }
  RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  return Annotate(shard.FinishRestore(), shard.plan().restore());
}

absl::Status CheckpointClient::WriteShard(const v1::JobPlan& plan, const ShardSnapshot& snapshot,
                                          std::stop_token stop) {
  int64_t bytes = 0;
  for (const ShardSnapshot::Piece& piece : snapshot.pieces) {
    bytes += static_cast<int64_t>(piece.elements.size() * sizeof(float));
  }
  const std::string what =
      absl::StrCat(plan.job(), ": writing shard ", ToInt(snapshot.shard), ", step ", snapshot.step);
  v1::WriteShardHeader header = HeaderOf(plan, snapshot);
  if (plan.spec().checkpoint().mode() == v1::CHECKPOINT_MODE_DIRECT) {
    std::string trouble =
        checkpoint_root_.empty() ? "this member was started without --checkpoint_root" : "";
    if (trouble.empty()) {
      const absl::Status written = Retry(
          what, bytes,
          [&](Stub& stub, grpc::ClientContext& context) {
            return WriteDirectOnce(stub, header, snapshot, context, trouble);
          },
          stop);
      // Sends the bytes only after a local fault, or if the coordinator wants them sent.
      if (trouble.empty() && ReasonOf(written) != "DIRECT_OFF") return written;
    }
    LOG_IF(WARNING, !trouble.empty())
        << what << ": cannot write it directly, sending it to the coordinator: " << trouble;
    header.set_not_direct_because(trouble);
  }
  return Retry(
      what, bytes,
      [&](Stub& stub, grpc::ClientContext& context) {
        return WriteOnce(stub, header, snapshot, context);
      },
      stop);
}

absl::Status CheckpointClient::WriteOnce(Stub& stub, const v1::WriteShardHeader& header,
                                         const ShardSnapshot& snapshot,
                                         grpc::ClientContext& context) {
  v1::WriteShardResponse response;
  auto writer = stub.WriteShard(&context, &response);
  v1::WriteShardRequest request;
  *request.mutable_header() = header;
  bool open = writer->Write(request);
  for (const ShardSnapshot::Piece& piece : snapshot.pieces) {
    const absl::Span<const std::byte> bytes = BytesOf(piece);
    for (size_t offset = 0; open && offset < bytes.size(); offset += limits::kSliceBytesMax) {
      const auto data = bytes.subspan(offset, limits::kSliceBytesMax);
      v1::ShardSlice& slice = *request.mutable_slice();
      slice.set_chunk(ToInt(piece.chunk));
      slice.set_slot(piece.slot);
      slice.set_offset_bytes(static_cast<int64_t>(offset));
      slice.set_data(data.data(), data.size());
      slice.set_crc32c(Crc32c(data));
      open = writer->Write(request);
    }
  }
  // A coordinator that has this shard already answers before the end.
  if (open) writer->WritesDone();
  const absl::Status status = FromGrpc(writer->Finish());
  // DATA_LOSS means damage on the way. Our copy is good: ABORTED makes Retry() send it again.
  return absl::IsDataLoss(status) ? absl::AbortedError(status.message()) : status;
}

// The coordinator's status comes at the end of the stream, so after a broken read or write Finish()
// returns the cause.
absl::Status CheckpointClient::WriteDirectOnce(Stub& stub, const v1::WriteShardHeader& header,
                                               const ShardSnapshot& snapshot,
                                               grpc::ClientContext& context,
                                               std::string& trouble) const {
  auto stream = stub.WriteShardDirect(&context);
  v1::WriteShardDirectRequest request;
  *request.mutable_header() = header;
  v1::WriteShardDirectResponse layout, message;
  bool open = stream->Write(request);
  while (open && !layout.ready() && (open = stream->Read(&message))) layout.MergeFrom(message);
  if (!layout.ready()) return FromGrpc(stream->Finish());
  if (!layout.written()) {
    const absl::Status written =
        WriteFiles({.root = checkpoint_root_, .job = header.job(), .step = header.step()}, layout,
                   snapshot, [&](const v1::WrittenSlice& slice) {
                     *request.mutable_slice() = slice;
                     open = stream->Write(request);
                     return open;
                   });
    if (!written.ok()) {
      context.TryCancel();
      static_cast<void>(stream->Finish());
      trouble = std::string(written.message());
      return absl::FailedPreconditionError(trouble);
    }
  }
  request.mutable_closed();
  if (open && stream->Write(request)) stream->WritesDone();
  return FromGrpc(stream->Finish());
}

}  // namespace muster
