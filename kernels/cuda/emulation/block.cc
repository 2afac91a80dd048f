#include "kernels/cuda/emulation/block.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace muster::kernels::cuda::emulation {
namespace {

constexpr int kWarp = 32;
constexpr int kThreadsMax = 1024;
constexpr size_t kStackBytes = 256 * 1024;  // pages are touched only when used

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "emulated block (%u, %u, %u), thread (%u, %u, %u): %s\n", blockIdx.x,
               blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
  std::abort();
}

enum class State { kReady, kAtExchange, kAtBarrier, kDone };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  void* sanitizer_stack = nullptr;
  State state = State::kDone;
  unsigned mask = 0;  // the exchange's mask
  uint64_t given = 0;
  std::vector<std::pair<void*, const void*>> copies;  // under way
  std::array<uint64_t, kWarp> received = {};          // from each lane, in the last exchange
};

class Block {
 public:
  void Run(int threads, const std::function<void()>& thread);
  void SyncBlock();
  void CopyLater(void* to, const void* from);
  void AwaitCopies();
  void Exchange(unsigned mask, uint64_t value);
  uint64_t Received(unsigned mask, int lane) const;
  int lane() const { return current_ % kWarp; }

  ThreadOrder order = ThreadOrder::kAscending;
  void* shared = nullptr;

 private:
  static void Enter();
  void Resume(int number);
  void Wait(State state);
  void Index();

  std::vector<Fiber> fibers_{kThreadsMax};
  ucontext_t scheduler_;
  [[maybe_unused]] const void* scheduler_stack_ = nullptr;  // with a sanitizer
  [[maybe_unused]] size_t scheduler_stack_bytes_ = 0;
  const std::function<void()>* thread_ = nullptr;
  int threads_ = 0;
  int current_ = 0;
};

Block& TheBlock() {
  static Block& block = *new Block;
  return block;
}

void Block::Index() {
  const auto number = static_cast<unsigned>(current_);
  threadIdx = {number % blockDim.x, number / blockDim.x % blockDim.y,
               number / blockDim.x / blockDim.y};
}

// The main function of a fiber. When its thread has ended, the fiber runs a thread of a later
// block.
void Block::Enter() {
  Block& block = TheBlock();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_stack_, &block.scheduler_stack_bytes_);
#endif
  for (;;) {
    (*block.thread_)();
    block.Wait(State::kDone);
  }
}

void Block::Resume(int number) {
  Fiber& fiber = fibers_[number];
  if (fiber.stack == nullptr) {
    fiber.stack.reset(new char[kStackBytes]);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::Enter, 0);
  }
  current_ = number;
  Index();
#if defined(__SANITIZE_ADDRESS__)
  void* own_stack = nullptr;
  __sanitizer_start_switch_fiber(&own_stack, fiber.stack.get(), kStackBytes);
  swapcontext(&scheduler_, &fiber.context);
  __sanitizer_finish_switch_fiber(own_stack, nullptr, nullptr);
#else
  swapcontext(&scheduler_, &fiber.context);
#endif
}

// Returns to the scheduler until the state is kReady.
void Block::Wait(State state) {
  Fiber& fiber = fibers_[current_];
  fiber.state = state;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fiber.sanitizer_stack, scheduler_stack_, scheduler_stack_bytes_);
  swapcontext(&fiber.context, &scheduler_);
  __sanitizer_finish_switch_fiber(fiber.sanitizer_stack, nullptr, nullptr);
#else
  swapcontext(&fiber.context, &scheduler_);
#endif
}

void Block::Run(int threads, const std::function<void()>& thread) {
  threads_ = threads;
  thread_ = &thread;
  for (int i = 0; i < threads; ++i) fibers_[i].state = State::kReady;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (int i = 0; i < threads; ++i) {
      const int number = order == ThreadOrder::kAscending ? i : threads - 1 - i;
      if (fibers_[number].state != State::kReady) continue;
      Resume(number);
      goes_on = true;
    }
  }
  for (current_ = 0; current_ < threads; ++current_) {
    Index();
    if (!fibers_[current_].copies.empty()) Fail("it does not await its copies");
    if (fibers_[current_].state == State::kAtBarrier) Fail("others do not come to its barrier");
    if (fibers_[current_].state == State::kAtExchange) Fail("lanes do not come to its exchange");
  }
}

// The last thread to arrive does not wait.
void Block::SyncBlock() {
  fibers_[current_].state = State::kAtBarrier;
  for (int i = 0; i < threads_; ++i) {
    if (fibers_[i].state != State::kAtBarrier) return Wait(State::kAtBarrier);
  }
  for (int i = 0; i < threads_; ++i) fibers_[i].state = State::kReady;
}

void Block::CopyLater(void* to, const void* from) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 16 != 0) {
    Fail("a copy of 16 bytes is not aligned");
  }
  fibers_[current_].copies.push_back({to, from});
  if (order == ThreadOrder::kAscending) AwaitCopies();
}

void Block::AwaitCopies() {
  for (const auto& [to, from] : fibers_[current_].copies) {
    if (from == nullptr) {
      std::memset(to, 0, 16);
    } else {
      std::memcpy(to, from, 16);
    }
  }
  fibers_[current_].copies.clear();
}

void Block::Exchange(unsigned mask, uint64_t value) {
  Fiber& own = fibers_[current_];
  Fiber* warp = &fibers_[current_ / kWarp * kWarp];
  if ((mask >> lane() & 1) == 0) Fail("its own lane is not in the mask of its exchange");
  own.state = State::kAtExchange;
  own.mask = mask;
  own.given = value;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    if (warp + lane >= fibers_.data() + threads_) Fail("the mask names lanes that do not exist");
    if (warp[lane].state != State::kAtExchange || warp[lane].mask != mask) {
      return Wait(State::kAtExchange);
    }
  }
  std::array<uint64_t, kWarp> given;
  for (int lane = 0; lane < kWarp; ++lane) given[lane] = warp[lane].given;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    warp[lane].received = given;
    warp[lane].state = State::kReady;
  }
}

uint64_t Block::Received(unsigned mask, int lane) const {
  if ((mask >> lane & 1) == 0) Fail("it reads from a lane that is not in the mask");
  return fibers_[current_].received[lane];
}

}  // namespace

void SetThreadOrder(ThreadOrder order) { TheBlock().order = order; }

cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes,
                    const std::function<void()>& thread) {
  const auto is_within = [](unsigned n, unsigned limit) { return n >= 1 && n <= limit; };
  const bool fits = is_within(grid.x, 0x7fffffff) && is_within(grid.y, 65535) &&
                    is_within(grid.z, 65535) && is_within(block.x, kThreadsMax) &&
                    is_within(block.y, kThreadsMax) && is_within(block.z, 64) &&
                    block.x * block.y * block.z <= kThreadsMax && shared_bytes <= kSharedBytesMax;
  if (!fits) return cudaErrorInvalidConfiguration;
  // Shared memory is on the heap, so that a sanitizer detects accesses beyond its end.
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, std::max<size_t>(shared_bytes, 1)) != 0) std::abort();
  const std::unique_ptr<void, decltype(&std::free)> shared(memory, &std::free);
  TheBlock().shared = shared.get();
  gridDim = grid;
  blockDim = block;
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        std::memset(shared.get(), 0xff, shared_bytes);
        TheBlock().Run(static_cast<int>(block.x * block.y * block.z), thread);
      }
    }
  }
  return cudaSuccess;
}

void CopyLater(void* to, const void* from) { TheBlock().CopyLater(to, from); }
void AwaitCopies() { TheBlock().AwaitCopies(); }
void SyncBlock() { TheBlock().SyncBlock(); }
void Exchange(unsigned mask, uint64_t value) { TheBlock().Exchange(mask, value); }
uint64_t Received(unsigned mask, int lane) { return TheBlock().Received(mask, lane); }
int Lane() { return TheBlock().lane(); }
void* SharedMemory() { return TheBlock().shared; }

}  // namespace muster::kernels::cuda::emulation
