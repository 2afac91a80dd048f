#include "kernels/cuda/dropout.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// The same function as Philox() in kernels/philox.h.
__device__ uint4 Philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter.x;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter.z;
    counter = make_uint4(
        static_cast<uint32_t>(product1 >> 32) ^ counter.y ^ key.x, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter.w ^ key.y, static_cast<uint32_t>(product0));
    key.x += 0x9E3779B9;
    key.y += 0xBB67AE85;
  }
  return counter;
}

// Returns the most groups of four, by their positions, that `columns` neighbours meet.
constexpr int64_t GroupsOf(int64_t columns) { return (columns + 6) / 4; }

// Each thread takes groups of four elements of a row. They share one Philox counter, by their
// positions in the global batch.
template <typename T>
__global__ void DropGroups(T* y, const T* x, int64_t rows, DropoutPart part, DropoutArguments a,
                           const RunNumbers* numbers) {
  const float scale = 1 / (1 - a.rate);
  const int64_t first =
      numbers->first_position * (rows * part.whole / numbers->samples) + part.first;
  const uint64_t stream = uint64_t{1} << 63 | static_cast<uint64_t>(a.salt) << 32 |
                          static_cast<uint32_t>(numbers->step);
  const uint64_t seed = numbers->seed;
  const int64_t of_row = GroupsOf(part.columns);
  for (int64_t g = ThreadIndex(); g < rows * of_row; g += ThreadCount()) {
    const int64_t row = rows == 1 ? 0 : g / of_row;    // a division costs as much as some rounds
    const int64_t element = first + row * part.whole;  // of the row's first column
    const auto group = static_cast<uint64_t>(element / 4 + g - row * of_row);
    const uint4 random =
        Philox(make_uint4(static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                          static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)),
               make_uint2(static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)));
    const uint32_t words[4] = {random.x, random.y, random.z, random.w};
    const int64_t start = static_cast<int64_t>(group) * 4 - element;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t column = start + k;
      if (column < 0 || column >= part.columns) continue;
      const int64_t i = row * part.columns + column;
      const bool dropped = words[k] >> 8 < a.threshold;
      y[i] = FromFloat<T>(dropped ? 0 : ToFloat(x[i]) * scale);
    }
  }
}

}  // namespace

cudaError_t Dropout(void* y, const void* x, int64_t n, Type type, const DropoutArguments& arguments,
                    const RunNumbers* numbers, cudaStream_t stream) {
  return DropoutOfPart(y, x, 1, {.columns = n, .first = 0, .whole = n}, type, arguments, numbers,
                       stream);
}

cudaError_t DropoutOfPart(void* y, const void* x, int64_t rows, const DropoutPart& part, Type type,
                          const DropoutArguments& arguments, const RunNumbers* numbers,
                          cudaStream_t stream) {
  if (rows * part.columns == 0) return cudaSuccess;
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(DropGroups<T>, Strided(rows * GroupsOf(part.columns)), kThreads, 0, stream,
                  static_cast<T*>(y), static_cast<const T*>(x), rows, part, arguments, numbers);
  });
}

}  // namespace muster::kernels::cuda
