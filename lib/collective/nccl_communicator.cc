#include "lib/collective/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/collective/polled_wait.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// NCCL's functions, found at run time.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclGetErrorString) error_string;
  decltype(&ncclGetLastError) last_error;
};

template <typename Function>
void Find(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
}

absl::StatusOr<Nccl> LoadNccl() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("several GPUs of one worker need NCCL, which cannot be loaded: ", dlerror(),
                     "; install libnccl2, or give the worker one GPU"));
  }
  Nccl nccl;
  std::string missing;
  Find(library, "ncclGetVersion", nccl.get_version, missing);
  Find(library, "ncclGetUniqueId", nccl.get_unique_id, missing);
  Find(library, "ncclCommInitRankConfig", nccl.init, missing);
  Find(library, "ncclCommGetAsyncError", nccl.async_error, missing);
  Find(library, "ncclCommAbort", nccl.abort, missing);
  Find(library, "ncclAllReduce", nccl.all_reduce, missing);
  Find(library, "ncclReduceScatter", nccl.reduce_scatter, missing);
  Find(library, "ncclAllGather", nccl.all_gather, missing);
  Find(library, "ncclBroadcast", nccl.broadcast, missing);
  Find(library, "ncclGetErrorString", nccl.error_string, missing);
  Find(library, "ncclGetLastError", nccl.last_error, missing);
  if (missing.empty()) return nccl;
  return absl::UnavailableError(
      absl::StrCat("libnccl.so.2 is too old: it has no ", missing, "; 2.14 or newer is needed"));
}

ncclDataType_t TypeOf(CollectiveType type) {
  switch (type) {
    case CollectiveType::kF32:
      return ncclFloat32;
    case CollectiveType::kBf16:
      return ncclBfloat16;
    case CollectiveType::kF16:
      return ncclFloat16;
    case CollectiveType::kF64:
      return ncclFloat64;
  }
  LOG(FATAL) << "collective type " << static_cast<int>(type);
}

size_t Count(int64_t elements) { return static_cast<size_t>(elements); }

absl::StatusOr<const Nccl*> GetNccl() {
  static const absl::StatusOr<Nccl>* const nccl = new absl::StatusOr<Nccl>(LoadNccl());
  RETURN_IF_ERROR(nccl->status());
  return &**nccl;
}

}  // namespace

class NcclGroup::Member : public Communicator {
 public:
  Member(NcclGroup* group, const Nccl* nccl, int rank)
      : group_(*group), nccl_(*nccl), rank_(rank), wait_({.timeout = group->timeout_}) {}

  // Frees NCCL's memory of the communicator. abort() also releases other ranks that still wait.
  ~Member() override {
    if (communicator_ != nullptr) nccl_.abort(communicator_);
  }

  absl::Status Start() {
    ncclUniqueId id;
    CHECK_EQ(group_.id_.size(), sizeof(id.internal));
    std::memcpy(id.internal, group_.id_.data(), sizeof(id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that a missing rank cannot block us forever
    RETURN_IF_ERROR(
        Settle("start", nccl_.init(&communicator_, group_.world_size_, id, rank_, &config)));
    group_.ranks_[rank_].enqueued = 0;
    return absl::OkStatus();
  }

  int rank() const override { return rank_; }
  int world_size() const override { return group_.world_size_; }

  absl::Status AllReduce(TypedBuffer data, CollectiveStream stream) override {
    return Enqueue("AllReduce", [&] {
      return nccl_.all_reduce(data.data, data.data, Count(data.elements), TypeOf(data.type),
                              ncclSum, communicator_, static_cast<cudaStream_t>(stream));
    });
  }

  absl::Status ReduceScatter(ConstTypedBuffer data, TypedBuffer slice,
                             CollectiveStream stream) override {
    CHECK(IsSliceOf(slice, data, world_size())) << slice.elements << ", " << data.elements;
    return Enqueue("ReduceScatter", [&] {
      return nccl_.reduce_scatter(data.data, slice.data, Count(slice.elements), TypeOf(data.type),
                                  ncclSum, communicator_, static_cast<cudaStream_t>(stream));
    });
  }

  absl::Status AllGather(ConstTypedBuffer slice, TypedBuffer data,
                         CollectiveStream stream) override {
    CHECK(IsSliceOf(slice, data, world_size())) << slice.elements << ", " << data.elements;
    return Enqueue("AllGather", [&] {
      return nccl_.all_gather(slice.data, data.data, Count(slice.elements), TypeOf(data.type),
                              communicator_, static_cast<cudaStream_t>(stream));
    });
  }

  absl::Status Broadcast(TypedBuffer data, int root, CollectiveStream stream) override {
    return Enqueue("Broadcast", [&] {
      return nccl_.broadcast(data.data, data.data, Count(data.elements), TypeOf(data.type), root,
                             communicator_, static_cast<cudaStream_t>(stream));
    });
  }

  absl::Status Await(absl::string_view what,
                     absl::FunctionRef<absl::StatusOr<bool>()> finished) override {
    const absl::Status awaited = wait_.Await(
        [&]() -> absl::StatusOr<bool> {
          RETURN_IF_ERROR(Health());
          return finished();
        },
        [&] { return TimedOut(what); });
    return awaited.ok() ? awaited : GiveUp(awaited);
  }

  void Abort(absl::Status why) override { group_.Abort(std::move(why)); }
  void Leave(absl::Status why) override { GiveUp(std::move(why)).IgnoreError(); }

 private:
  template <typename Call>
  absl::Status Enqueue(const char* operation, const Call& call) {
    if (const absl::Status health = Health(); !health.ok()) return GiveUp(health);
    RETURN_IF_ERROR(Settle(operation, call()));
    group_.ranks_[rank_].enqueued.fetch_add(1);
    return absl::OkStatus();
  }

  // Waits for a call that NCCL continues in the background.
  absl::Status Settle(const char* operation, ncclResult_t result) {
    const absl::Status settled = wait_.Await(
        [&]() -> absl::StatusOr<bool> {
          RETURN_IF_ERROR(group_.aborted());
          if (result == ncclInProgress) result = AsynchronousError();
          if (result == ncclInProgress) return false;
          if (result == ncclSuccess) return true;
          return Failed(operation, result);
        },
        [&] { return TimedOut(operation); });
    return settled.ok() ? settled : GiveUp(settled);
  }

  ncclResult_t AsynchronousError() const {
    ncclResult_t result = ncclSuccess;
    return nccl_.async_error(communicator_, &result) == ncclSuccess ? result : ncclInternalError;
  }

  // Returns an error if the group was aborted or NCCL reports an error. Call it before every use of
  // the communicator, because GiveUp() destroys the communicator.
  absl::Status Health() const {
    RETURN_IF_ERROR(group_.aborted());
    const ncclResult_t result = AsynchronousError();
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return Failed("an operation under way", result);
  }

  absl::Status Failed(const char* operation, ncclResult_t result) const {
    return absl::InternalError(absl::StrCat("NCCL, rank ", rank_, " of ", group_.world_size_, ", ",
                                            operation, ": ", nccl_.error_string(result), " (",
                                            nccl_.last_error(communicator_), ")"));
  }

  absl::Status TimedOut(absl::string_view what) const {
    return WithReason(
        absl::DeadlineExceededError(absl::StrCat(
            "NCCL, ", what, ": rank ", rank_, " has waited ", absl::FormatDuration(group_.timeout_),
            " for ", group_.RanksBehind(group_.ranks_[rank_].enqueued.load()))),
        "COLLECTIVE_TIMEOUT");
  }

  // Ends everything that waits on this rank's GPU: NCCL's kernels notice the abort and end.
  absl::Status GiveUp(absl::Status why) {
    group_.Abort(std::move(why));
    if (communicator_ != nullptr) nccl_.abort(std::exchange(communicator_, nullptr));
    return group_.aborted();
  }

  NcclGroup& group_;
  const Nccl& nccl_;
  const int rank_;
  const PolledWait wait_;
  ncclComm_t communicator_ = nullptr;  // null after an abort
};

int NcclGroup::LibraryVersion() {
  const absl::StatusOr<const Nccl*> nccl = GetNccl();
  CHECK(nccl.ok()) << nccl.status();
  int version = 0;
  (*nccl)->get_version(&version);
  return version;
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Create(int world_size,
                                                             absl::Duration timeout) {
  ASSIGN_OR_RETURN(const Nccl* nccl, GetNccl());
  ncclUniqueId id;
  if (const ncclResult_t made = nccl->get_unique_id(&id); made != ncclSuccess) {
    return absl::UnavailableError(
        absl::StrCat("NCCL cannot create a unique id: ", nccl->error_string(made)));
  }
  return Open(std::string(id.internal, sizeof(id.internal)), world_size, timeout);
}

absl::StatusOr<std::unique_ptr<NcclGroup>> NcclGroup::Open(std::string id, int world_size,
                                                           absl::Duration timeout) {
  RETURN_IF_ERROR(GetNccl().status());
  if (id.size() != sizeof(ncclUniqueId)) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL's unique id has ", sizeof(ncclUniqueId), " bytes, not ", id.size()));
  }
  return absl::WrapUnique(new NcclGroup(std::move(id), world_size, timeout));
}

NcclGroup::NcclGroup(std::string id, int world_size, absl::Duration timeout)
    : id_(std::move(id)), world_size_(world_size), timeout_(timeout), ranks_(world_size) {}

absl::StatusOr<std::unique_ptr<Communicator>> NcclGroup::Join(int rank) {
  CHECK(rank >= 0 && rank < world_size_) << "rank " << rank << " of " << world_size_;
  ASSIGN_OR_RETURN(const Nccl* nccl, GetNccl());
  auto member = std::make_unique<Member>(this, nccl, rank);
  RETURN_IF_ERROR(member->Start());
  return member;
}

absl::Status NcclGroup::aborted() const {
  if (!is_aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  return aborted_;
}

void NcclGroup::Abort(absl::Status why) {
  CHECK(!why.ok());
  absl::MutexLock lock(&mu_);
  if (aborted_.ok()) aborted_ = std::move(why);
  is_aborted_.store(true, std::memory_order_release);
}

// Names the ranks of this process that have enqueued fewer than `operations` operations. If there
// are none, names the ranks whose progress is unknown: those of other processes and those that have
// not joined.
std::string NcclGroup::RanksBehind(int64_t operations) const {
  std::vector<int> behind, unknown;
  for (int rank = 0; rank < world_size_; ++rank) {
    const int64_t enqueued = ranks_[rank].enqueued.load();
    if (enqueued < 0) unknown.push_back(rank);
    if (enqueued >= 0 && enqueued < operations) behind.push_back(rank);
  }
  const std::vector<int>& named = behind.empty() ? unknown : behind;
  return named.empty() ? "the GPUs, where all operations are"
                       : absl::StrCat("rank ", absl::StrJoin(named, ", "));
}

}  // namespace muster
