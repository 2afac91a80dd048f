// Runs the threads of a block as fibers of one thread. The CUDA headers in include/ are built on
// it.
//
// A fiber runs until it has to wait for others, so nothing is concurrent and everything repeats.
// The process ends with a message if not all threads reach a barrier, or not all lanes of a mask
// reach an exchange. A device would hang, or its behavior would be undefined.
#pragma once

#include <functional>

#include "cuda_runtime_api.h"

struct uint3 {
  unsigned x, y, z;
};

// The values of the running fiber.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace muster::kernels::cuda::emulation {

// The order in which runnable threads run. A kernel's results must not depend on it.
enum class ThreadOrder { kAscending, kDescending };
void SetThreadOrder(ThreadOrder order);

// Calls thread() for every thread of every block. Returns cudaErrorInvalidConfiguration beyond the
// limits of a device.
cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes,
                    const std::function<void()>& thread);

// Waits for the other threads of the block.
void SyncBlock();

// Waits for the lanes of the mask, which must include this one, and gives them `value`.
void Exchange(unsigned mask, uint64_t value);
// Returns the value that `lane` gave in the last Exchange, which must have had this mask.
uint64_t Received(unsigned mask, int lane);
int Lane();

// Copies 16 bytes, or zeros if `from` is null: at once in ascending thread order, in the thread's
// next AwaitCopies() in descending order. A thread that ends with a pending copy ends the process.
void CopyLater(void* to, const void* from);
void AwaitCopies();

// The shared memory requested by the launch, aligned to 128 bytes.
void* SharedMemory();

}  // namespace muster::kernels::cuda::emulation
