// UCX tag messages between buffers that are reused. Receives are posted before the messages arrive,
// so that UCX copies as little as possible.
#include <poll.h>
#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "tests/bench/bare_substrate.h"

namespace muster {
namespace {

constexpr size_t kAddressBytesMax = 4096;
constexpr uint64_t kAnswer = uint64_t{1} << 63;

// A process leaves its address here for the others.
struct AddressSlot {
  std::atomic<size_t> length = 0;  // 0: not set yet
  char bytes[kAddressBytesMax] = {};
};

uint64_t TagOf(int tensor, int worker) {
  return static_cast<uint64_t>(worker) << 32 | static_cast<uint64_t>(tensor);
}

// A UCX worker and the messages that have arrived on it.
class UcxMember {
 public:
  UcxMember(const char* networks, bool poll) : poll_(poll) {
    ucp_config_t* config = nullptr;
    CHECK_EQ(ucp_config_read(nullptr, nullptr, &config), UCS_OK);
    CHECK_EQ(ucp_config_modify(config, "TLS", networks), UCS_OK);
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | (poll ? 0 : UCP_FEATURE_WAKEUP);
    CHECK_EQ(ucp_init(&params, config, &context_), UCS_OK) << "UCX has no " << networks << " here";
    ucp_config_release(config);
    ucp_worker_params_t worker = {};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    CHECK_EQ(ucp_worker_create(context_, &worker, &worker_), UCS_OK);
    if (!poll) CHECK_EQ(ucp_worker_get_efd(worker_, &event_fd_), UCS_OK);
  }
  // There is no cleanup: the object lives until the process exits, which frees UCX's resources.
  UcxMember(const UcxMember&) = delete;

  void Publish(AddressSlot& slot) {
    ucp_address_t* address = nullptr;
    size_t length = 0;
    CHECK_EQ(ucp_worker_get_address(worker_, &address, &length), UCS_OK);
    CHECK_LE(length, kAddressBytesMax);
    std::memcpy(slot.bytes, address, length);
    slot.length.store(length, std::memory_order_release);
    ucp_worker_release_address(worker_, address);
  }

  ucp_ep_h Connect(const AddressSlot& slot) {
    while (slot.length.load(std::memory_order_acquire) == 0) std::this_thread::yield();
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(slot.bytes);
    ucp_ep_h endpoint = nullptr;
    CHECK_EQ(ucp_ep_create(worker_, &params, &endpoint), UCS_OK);
    return endpoint;
  }

  void Send(ucp_ep_h endpoint, uint64_t tag, const float* memory, size_t bytes) {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
    param.cb.send = [](void* request, ucs_status_t status, void*) {
      CHECK_EQ(status, UCS_OK);
      ucp_request_free(request);
    };
    CHECK(!UCS_PTR_IS_ERR(ucp_tag_send_nbx(endpoint, memory, bytes, tag, &param)));
  }

  void PostReceive(uint64_t tag, float* memory, size_t bytes) {
    ucp_request_param_t param = {};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.user_data = this;
    param.cb.recv = [](void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                       void* self) {
      CHECK_EQ(status, UCS_OK);
      static_cast<UcxMember*>(self)->arrived_.push_back(info->sender_tag);
      ucp_request_free(request);
    };
    CHECK(!UCS_PTR_IS_ERR(
        ucp_tag_recv_nbx(worker_, memory, bytes, tag, /*tag_mask=*/~uint64_t{0}, &param)));
  }

  // Blocks until a message has arrived and returns its tag.
  uint64_t AwaitArrival() {
    while (arrived_.empty()) {
      if (ucp_worker_progress(worker_) > 0 || poll_) continue;
      const ucs_status_t armed = ucp_worker_arm(worker_);
      if (armed == UCS_ERR_BUSY) continue;
      CHECK_EQ(armed, UCS_OK);
      pollfd event = {.fd = event_fd_, .events = POLLIN, .revents = 0};
      poll(&event, 1, -1);
    }
    const uint64_t tag = arrived_.front();
    arrived_.pop_front();
    return tag;
  }

  // Returns true if nothing is in flight. Over TCP a flush completes only when the peer has
  // acknowledged all messages.
  bool Settle() {
    if (!flushing_) {
      flushing_ = true;
      ucp_request_param_t param = {};
      flush_ = ucp_worker_flush_nbx(worker_, &param);
      CHECK(!UCS_PTR_IS_ERR(flush_));
    }
    ucp_worker_progress(worker_);
    return flush_ == nullptr || ucp_request_check_status(flush_) != UCS_INPROGRESS;
  }

 private:
  const bool poll_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::deque<uint64_t> arrived_;
  bool flushing_ = false;
  void* flush_ = nullptr;  // the request; null: it completed at once
};

class UcxWorker : public BareWorkerEnd {
 public:
  UcxWorker(const BareLoopOptions& options, const char* networks, AddressSlot* slots, int rank)
      : options_(options),
        rank_(rank),
        elements_(options.message_bytes / sizeof(float)),
        gradients_(options.tensors * elements_),
        values_(options.tensors * elements_),
        member_(networks, options.poll) {
    member_.Publish(slots[rank]);
    for (int i = 0; i < options.servers; ++i) {
      servers_.push_back(member_.Connect(slots[options.workers + i]));
    }
  }
  bool Settle() override { return member_.Settle(); }
  float* gradient(int tensor) override { return &gradients_[tensor * elements_]; }
  const float* values(int tensor) override { return &values_[tensor * elements_]; }
  void Push(int tensor) override {
    member_.PostReceive(kAnswer | TagOf(tensor, rank_), &values_[tensor * elements_],
                        options_.message_bytes);
    member_.Send(servers_[tensor % options_.servers], TagOf(tensor, rank_), gradient(tensor),
                 options_.message_bytes);
  }
  int AwaitValues() override { return static_cast<int>(member_.AwaitArrival() & 0xffffffff); }

 private:
  const BareLoopOptions options_;
  const int rank_;
  const int64_t elements_;
  std::vector<float> gradients_, values_;
  UcxMember member_;
  std::vector<ucp_ep_h> servers_;
};

class UcxServer : public BareServerEnd {
 public:
  UcxServer(const BareLoopOptions& options, const char* networks, AddressSlot* slots, int index)
      : options_(options),
        elements_(options.message_bytes / sizeof(float)),
        gradients_(options.workers * options.tensors * elements_),
        member_(networks, options.poll) {
    for (int worker = 0; worker < options.workers; ++worker) {
      for (int tensor = index; tensor < options.tensors; tensor += options.servers) {
        Await(tensor, worker);
      }
    }
    member_.Publish(slots[options.workers + index]);
    for (int rank = 0; rank < options.workers; ++rank) {
      workers_.push_back(member_.Connect(slots[rank]));
    }
  }
  bool Settle() override { return member_.Settle(); }
  Arrival AwaitPush() override {
    const uint64_t tag = member_.AwaitArrival();
    return {.tensor = static_cast<int>(tag & 0xffffffff), .worker = static_cast<int>(tag >> 32)};
  }
  const float* gradient(int tensor, int worker) override {
    return &gradients_[(int64_t{worker} * options_.tensors + tensor) * elements_];
  }
  float* place(int, int) override { return nullptr; }
  void Answer(int tensor, int worker, const float* values) override {
    Await(tensor, worker);
    member_.Send(workers_[worker], kAnswer | TagOf(tensor, worker), values, options_.message_bytes);
  }

 private:
  void Await(int tensor, int worker) {
    member_.PostReceive(TagOf(tensor, worker), const_cast<float*>(gradient(tensor, worker)),
                        options_.message_bytes);
  }

  const BareLoopOptions options_;
  const int64_t elements_;
  std::vector<float> gradients_;
  UcxMember member_;
  std::vector<ucp_ep_h> workers_;
};

class Ucx : public BareSubstrate {
 public:
  Ucx(const BareLoopOptions& options, const char* networks)
      : options_(options),
        networks_(networks),
        slots_(new (SharedPages((options.workers + options.servers) * sizeof(AddressSlot)))
                   AddressSlot[options.workers + options.servers]) {}
  std::unique_ptr<BareWorkerEnd> OpenWorker(int rank) override {
    return std::make_unique<UcxWorker>(options_, networks_, slots_, rank);
  }
  std::unique_ptr<BareServerEnd> OpenServer(int index) override {
    return std::make_unique<UcxServer>(options_, networks_, slots_, index);
  }

 private:
  const BareLoopOptions options_;
  const char* const networks_;
  AddressSlot* const slots_;
};

}  // namespace

std::unique_ptr<BareSubstrate> MakeBareUcx(const BareLoopOptions& options, const char* networks) {
  return std::make_unique<Ucx>(options, networks);
}

}  // namespace muster
