// Gradients, values and flags in memory that all processes map. The server reads a gradient and
// writes a value in the worker's memory. Only the tensor's number travels, in a ring.
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tests/bench/bare_substrate.h"

namespace muster {
namespace {

constexpr int64_t kPage = 4096;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Wakes a consumer that sleeps until an entry arrives.
struct alignas(64) Bell {
  std::atomic<uint32_t> rung = 0;
  std::atomic<uint32_t> sleeping = 0;

  // The fences in Ring() and Await() order each side's store before its load. So either Ring() sees
  // the sleeper, or the sleeper's `ready` sees the entry that was posted before Ring().
  void Ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeping.load(std::memory_order_relaxed) == 0) return;
    rung.fetch_add(1);
    syscall(SYS_futex, &rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // Blocks until the bell rings, unless `ready` is true already.
  template <typename Ready>
  void Await(const Ready& ready) {
    const uint32_t before = rung.load();
    sleeping.store(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!ready()) syscall(SYS_futex, &rung, FUTEX_WAIT, before, nullptr, nullptr, 0);
    sleeping.store(0);
  }
};

// A ring from one process to another, with at most kSlots tensor numbers in flight.
struct TensorRing {
  static constexpr uint32_t kSlots = 4096;
  alignas(64) std::atomic<uint32_t> posted = 0;
  alignas(64) uint32_t slots[kSlots] = {};

  void Post(int tensor, Bell& bell) {
    const uint32_t next = posted.load(std::memory_order_relaxed);
    slots[next % kSlots] = static_cast<uint32_t>(tensor);
    posted.store(next + 1, std::memory_order_release);
    bell.Ring();
  }
};

class SharedSegment {
 public:
  explicit SharedSegment(const BareLoopOptions& options)
      : options_(options), stride_(RoundUp(options.message_bytes, kPage)) {
    CHECK_LE(options.tensors, TensorRing::kSlots);
    const int members = options.workers + options.servers;
    bells_ = new (SharedPages(members * sizeof(Bell))) Bell[members];
    const int rings = 2 * options.workers * options.servers;
    rings_ = new (SharedPages(rings * sizeof(TensorRing))) TensorRing[rings];
    memory_ = static_cast<char*>(SharedPages(2 * options.workers * options.tensors * stride_));
  }

  Bell& worker_bell(int rank) { return bells_[rank]; }
  Bell& server_bell(int index) { return bells_[options_.workers + index]; }
  TensorRing& pushes(int rank, int index) { return rings_[rank * options_.servers + index]; }
  TensorRing& answers(int rank, int index) {
    return rings_[(options_.workers + rank) * options_.servers + index];
  }
  float* gradient(int rank, int tensor) { return Array(rank, tensor); }
  float* values(int rank, int tensor) { return Array(options_.workers + rank, tensor); }
  const BareLoopOptions& options() const { return options_; }

 private:
  float* Array(int row, int tensor) {
    return reinterpret_cast<float*>(memory_ + (int64_t{row} * options_.tensors + tensor) * stride_);
  }

  const BareLoopOptions options_;
  const int64_t stride_;
  Bell* bells_;
  TensorRing* rings_;
  char* memory_;
};

// Takes tensor numbers from several rings in turn.
class Inbox {
 public:
  Inbox(std::vector<TensorRing*> rings, Bell* bell, bool poll)
      : rings_(std::move(rings)), taken_(rings_.size()), bell_(bell), poll_(poll) {}

  struct Item {
    int ring;
    int tensor;
  };
  Item Take() {
    for (int spins = 1; !Ready(); ++spins) {
      if (!poll_) {
        bell_->Await([this] { return Ready(); });
      } else if (spins % kSpins != 0) {
        __builtin_ia32_pause();
      } else {
        sched_yield();
      }
    }
    return {next_, static_cast<int>(rings_[next_]->slots[taken_[next_]++ % TensorRing::kSlots])};
  }

 private:
  static constexpr int kSpins = 1000;  // polls between two yields to other processes

  // Advances `next_` to a ring that has an entry.
  bool Ready() {
    for (size_t i = 0; i < rings_.size(); ++i) {
      next_ = static_cast<int>((next_ + 1) % rings_.size());
      if (rings_[next_]->posted.load(std::memory_order_acquire) != taken_[next_]) return true;
    }
    return false;
  }

  const std::vector<TensorRing*> rings_;
  std::vector<uint32_t> taken_;
  Bell* const bell_;
  const bool poll_;
  int next_ = 0;
};

class SharedMemoryWorker : public BareWorkerEnd {
 public:
  SharedMemoryWorker(SharedSegment* segment, int rank)
      : segment_(segment),
        rank_(rank),
        inbox_(Answers(), &segment->worker_bell(rank), segment->options().poll) {}
  float* gradient(int tensor) override { return segment_->gradient(rank_, tensor); }
  const float* values(int tensor) override { return segment_->values(rank_, tensor); }
  void Push(int tensor) override {
    const int index = tensor % segment_->options().servers;
    segment_->pushes(rank_, index).Post(tensor, segment_->server_bell(index));
  }
  // Reads each cache line of the values once. After a read from a socket they would be in this
  // processor's cache, so both benchmarks must pay for it.
  int AwaitValues() override {
    const int tensor = inbox_.Take().tensor;
    const float* const values = segment_->values(rank_, tensor);
    const int64_t elements =
        segment_->options().message_bytes / static_cast<int64_t>(sizeof(float));
    float sum = 0;
    for (int64_t i = 0; i < elements; i += kLineFloats) sum += values[i];
    taken_ = taken_ + sum;
    return tensor;
  }

 private:
  static constexpr int64_t kLineFloats = 16;

  std::vector<TensorRing*> Answers() {
    std::vector<TensorRing*> rings;
    for (int i = 0; i < segment_->options().servers; ++i) {
      rings.push_back(&segment_->answers(rank_, i));
    }
    return rings;
  }

  SharedSegment* const segment_;
  const int rank_;
  Inbox inbox_;
  volatile float taken_ = 0;  // keeps the compiler from removing the reads
};

class SharedMemoryServer : public BareServerEnd {
 public:
  SharedMemoryServer(SharedSegment* segment, int index)
      : segment_(segment),
        index_(index),
        inbox_(Pushes(), &segment->server_bell(index), segment->options().poll) {}
  Arrival AwaitPush() override {
    const Inbox::Item item = inbox_.Take();
    return {.tensor = item.tensor, .worker = item.ring};
  }
  const float* gradient(int tensor, int worker) override {
    return segment_->gradient(worker, tensor);
  }
  float* place(int tensor, int worker) override { return segment_->values(worker, tensor); }
  void Answer(int tensor, int worker, const float*) override {
    segment_->answers(worker, index_).Post(tensor, segment_->worker_bell(worker));
  }

 private:
  std::vector<TensorRing*> Pushes() {
    std::vector<TensorRing*> rings;
    for (int rank = 0; rank < segment_->options().workers; ++rank) {
      rings.push_back(&segment_->pushes(rank, index_));
    }
    return rings;
  }

  SharedSegment* const segment_;
  const int index_;
  Inbox inbox_;
};

class SharedMemory : public BareSubstrate {
 public:
  explicit SharedMemory(const BareLoopOptions& options) : segment_(options) {}
  std::unique_ptr<BareWorkerEnd> OpenWorker(int rank) override {
    return std::make_unique<SharedMemoryWorker>(&segment_, rank);
  }
  std::unique_ptr<BareServerEnd> OpenServer(int index) override {
    return std::make_unique<SharedMemoryServer>(&segment_, index);
  }

 private:
  SharedSegment segment_;
};

}  // namespace

std::unique_ptr<BareSubstrate> MakeBareSharedMemory(const BareLoopOptions& options) {
  return std::make_unique<SharedMemory>(options);
}

}  // namespace muster
