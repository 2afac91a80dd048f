// Products of 16 x 16 by 16 x 8 tiles on tensor cores, and loads of tiles from shared memory.
//   Source: PTX ISA 8, "Matrix fragments for mma.m16n8k16 with .f16 / .bf16" and "ldmatrix".
//
// A lane holds, with g = lane / 4 and t = lane % 4:
// - of A (16 x 16): rows g and g + 8, columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
// - of B (16 x 8, stored by columns): column g, rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
// - of the product (16 x 8): rows g and g + 8, columns 2 t and 2 t + 1.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#ifndef __CUDACC__
#include "kernels/cuda/emulation/tensor_core.h"
#endif

namespace muster::kernels::cuda {

#ifdef __CUDACC__

// c += a b. b consists of two registers.
template <typename T>
__device__ void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ inline void MultiplyAdd<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void MultiplyAdd<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 2-byte elements. Lanes 8 i .. 8 i + 7 pass the addresses of the rows
// of matrix i, which are 16 bytes long and aligned to that. Register i of a lane receives elements
// 2 t and 2 t + 1 of row g of matrix i.
__device__ inline void LoadMatrices(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Loads the same matrices, each transposed: a lane receives element g of rows 2 t and 2 t + 1.
__device__ inline void LoadMatricesTransposed(uint32_t (&to)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// Returns 2^x by one instruction, to 2 units in the last place; 0 for -inf and if 2^x is subnormal.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Starts a copy of 16 bytes from global to shared memory, both aligned to 16; AwaitCopies() waits
// for it. If not `is_there`, writes zeros and reads nothing.
__device__ inline void CopyAsync(void* to, const void* from, bool is_there) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}

// Waits for this thread's copies. A barrier must follow before other threads read them.
__device__ inline void AwaitCopies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// The shared memory requested by the launch.
__device__ inline void* LaunchedSharedMemory() {
  extern __shared__ uint4 memory[];
  return memory;
}

#endif  // __CUDACC__

// Packs two elements into a register, the first in its low half.
template <typename T>
__device__ uint32_t Pack(float first, float second);
template <>
__device__ inline uint32_t Pack<__nv_bfloat16>(float first, float second) {
  return uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(first))} |
         uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(second))} << 16;
}
template <>
__device__ inline uint32_t Pack<__half>(float first, float second) {
  return uint32_t{__half_as_ushort(__float2half_rn(first))} |
         uint32_t{__half_as_ushort(__float2half_rn(second))} << 16;
}

}  // namespace muster::kernels::cuda
