// The threads of a block as fibers of one thread: what the CUDA headers in include/ are made of.
//
// A fiber runs until it has to wait for others, so nothing is at the same time and everything
// repeats. A barrier that not all threads come to, or an exchange that lanes of its mask do not
// come to, ends the process with a message: on a device it would hang or be undefined.
#pragma once

#include <functional>

#include "cuda_runtime_api.h"

struct uint3 {
  unsigned x, y, z;
};

// Of the fiber that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace muster::kernels::cuda::emulation {

// Which of the threads that can go on does so first. What a kernel computes must not depend on it.
enum class ThreadOrder { kAscending, kDescending };
void SetThreadOrder(ThreadOrder order);

// Calls thread() for every thread of every block; cudaErrorInvalidConfiguration beyond the limits
// of a device.
cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes,
                    const std::function<void()>& thread);

// Waits for the other threads of the block.
void SyncBlock();

// Waits for the lanes of the mask, of which this must be one, and gives them `value`.
void Exchange(unsigned mask, uint64_t value);
// What the lane gave in the last Exchange, which was with this mask.
uint64_t Received(unsigned mask, int lane);
int Lane();

// Copies 16 bytes, or zeros from null: at once where threads ascend, in the thread's next
// AwaitCopies() where they descend. A thread that ends without awaiting ends the process.
void CopyLater(void* to, const void* from);
void AwaitCopies();

// The memory that the launch asked for, aligned to 128 bytes.
void* SharedMemory();

}  // namespace muster::kernels::cuda::emulation
