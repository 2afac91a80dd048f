#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/movement.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kDimensionsMax = 12;
constexpr int kTile = 32;

// The dimensions of a box, y's innermost first.
struct Box {
  int dimensions = 0;
  int64_t sizes[kDimensionsMax];
  int64_t to[kDimensionsMax];
  int64_t from[kDimensionsMax];

  int64_t elements() const {
    int64_t n = 1;
    for (int d = 0; d < dimensions; ++d) n *= sizes[d];
    return n;
  }
};

// Adds the offsets of `index`, which counts over the dimensions from first_dimension on.
__device__ void Walk(const Box& box, int first_dimension, int64_t index, int64_t& to,
                     int64_t& from) {
  for (int d = first_dimension; d < box.dimensions; ++d) {
    const int64_t next = d + 1 == box.dimensions ? 0 : index / box.sizes[d];
    const int64_t own = index - next * box.sizes[d];
    to += own * box.to[d];
    from += own * box.from[d];
    index = next;
  }
}

template <typename W>
__global__ void CopyWords(W* y, const W* x, Box box, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    int64_t to = 0, from = 0;
    Walk(box, 0, i, to, from);
    y[to] = x[from];
  }
}

// Copies a box in tiles. Dimension 0 is contiguous in y and dimension 1 in x, so a tile is read
// along dimension 1 and written along dimension 0.
template <typename W>
__global__ void CopyTiles(W* y, const W* x, Box box, int64_t tiles0, int64_t tiles) {
  __shared__ W tile[kTile][kTile + 1];
  const int64_t tiles1 = (box.sizes[1] + kTile - 1) / kTile;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t start0 = t % tiles0 * kTile, start1 = t / tiles0 % tiles1 * kTile;
    int64_t to = 0, from = 0;
    Walk(box, 2, t / (tiles0 * tiles1), to, from);
    __syncthreads();
    for (int row = threadIdx.y; row < kTile; row += kThreads / kTile) {
      const int64_t i0 = start0 + row, i1 = start1 + threadIdx.x;
      if (i0 < box.sizes[0] && i1 < box.sizes[1]) {
        tile[row][threadIdx.x] = x[from + i0 * box.from[0] + i1];
      }
    }
    __syncthreads();
    for (int row = threadIdx.y; row < kTile; row += kThreads / kTile) {
      const int64_t i0 = start0 + threadIdx.x, i1 = start1 + row;
      if (i0 < box.sizes[0] && i1 < box.sizes[1]) {
        y[to + i0 + i1 * box.to[1]] = tile[threadIdx.x][row];
      }
    }
  }
}

// Drops dimensions of size 1, orders the others by y's strides, and merges those that are
// contiguous on both sides.
bool MakeBox(const View& to, const View& from, const std::vector<int64_t>& sizes, Box& box) {
  std::vector<size_t> order;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] > 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return to.strides[a] < to.strides[b]; });
  for (size_t d : order) {
    const int last = box.dimensions - 1;
    if (last >= 0 && to.strides[d] == box.to[last] * box.sizes[last] &&
        from.strides[d] == box.from[last] * box.sizes[last]) {
      box.sizes[last] *= sizes[d];
      continue;
    }
    if (box.dimensions == kDimensionsMax) return false;
    box.sizes[box.dimensions] = sizes[d];
    box.to[box.dimensions] = to.strides[d];
    box.from[box.dimensions] = from.strides[d];
    ++box.dimensions;
  }
  if (box.dimensions == 0) {
    box.dimensions = 1;
    box.sizes[0] = box.to[0] = box.from[0] = 1;
  }
  return true;
}

// Makes the box count in words of `factor` elements. Returns false unless the rows of the box are
// contiguous on both sides and consist of whole, aligned words.
bool Widen(Box& box, int64_t factor, int64_t to_offset, int64_t from_offset) {
  if (box.to[0] != 1 || box.from[0] != 1 || box.sizes[0] % factor != 0) return false;
  if (to_offset % factor != 0 || from_offset % factor != 0) return false;
  for (int d = 1; d < box.dimensions; ++d) {
    if (box.to[d] % factor != 0 || box.from[d] % factor != 0) return false;
  }
  box.sizes[0] /= factor;
  for (int d = 1; d < box.dimensions; ++d) {
    box.to[d] /= factor;
    box.from[d] /= factor;
  }
  return true;
}

template <typename W>
cudaError_t Copy(W* y, const W* x, Box box, cudaStream_t stream) {
  for (int d = 1; d < box.dimensions; ++d) {
    if (box.to[0] != 1 || box.from[d] != 1 || box.from[0] == 1) continue;
    std::swap(box.sizes[1], box.sizes[d]);
    std::swap(box.to[1], box.to[d]);
    std::swap(box.from[1], box.from[d]);
    const int64_t tiles0 = CeilDiv(box.sizes[0], kTile), tiles1 = CeilDiv(box.sizes[1], kTile);
    const int64_t tiles = box.elements() / (box.sizes[0] * box.sizes[1]) * tiles0 * tiles1;
    return Launch(CopyTiles<W>, dim3(static_cast<unsigned>(std::min(tiles, kBlocksMax))),
                  dim3(kTile, kThreads / kTile), 0, stream, y, x, box, tiles0, tiles);
  }
  const int64_t n = box.elements();
  return Launch(CopyWords<W>, Strided(n), kThreads, 0, stream, y, x, box, n);
}

template <typename W>
cudaError_t CopyElements(void* y, int64_t to_offset, const void* x, int64_t from_offset, Box box,
                         cudaStream_t stream) {
  constexpr int64_t kWide = sizeof(uint4) / sizeof(W);
  W* to = static_cast<W*>(y) + to_offset;
  const W* from = static_cast<const W*>(x) + from_offset;
  if (Widen(box, kWide, to_offset, from_offset)) {
    return Copy(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4*>(from), box, stream);
  }
  return Copy(to, from, box, stream);
}

// A pixel of eight channels.
union Pixel {
  uint4 word;
  uint16_t channels[kChannelsOfPixel];
};

__global__ void PadPixels(uint4* pixels, const uint16_t* planes, FewChannels shape) {
  const int64_t n = shape.batch * shape.pixels;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int64_t image = i / shape.pixels;
    const uint16_t* first = planes + image * (shape.channels - 1) * shape.pixels + i;
    Pixel pixel;
#pragma unroll
    for (int c = 0; c < kChannelsOfPixel; ++c) {
      pixel.channels[c] = c < shape.channels ? first[c * shape.pixels] : uint16_t{0};
    }
    pixels[i] = pixel.word;
  }
}

__global__ void TakePixels(uint16_t* planes, const uint4* pixels, FewChannels shape) {
  const int64_t n = shape.batch * shape.pixels;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int64_t image = i / shape.pixels;
    uint16_t* first = planes + image * (shape.channels - 1) * shape.pixels + i;
    Pixel pixel;
    pixel.word = pixels[i];
#pragma unroll
    for (int c = 0; c < kChannelsOfPixel; ++c) {
      if (c < shape.channels) first[c * shape.pixels] = pixel.channels[c];
    }
  }
}

}  // namespace

std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  return strides;
}

cudaError_t CopyBox(void* y, const View& to, const void* x, const View& from,
                    const std::vector<int64_t>& sizes, int element_bytes, cudaStream_t stream) {
  Box box;
  if (!MakeBox(to, from, sizes, box)) return cudaErrorInvalidValue;
  return element_bytes == 4 ? CopyElements<uint32_t>(y, to.offset, x, from.offset, box, stream)
                            : CopyElements<uint16_t>(y, to.offset, x, from.offset, box, stream);
}

cudaError_t PadChannels(void* pixels, const void* planes, FewChannels shape, cudaStream_t stream) {
  return Launch(PadPixels, Strided(shape.batch * shape.pixels), kThreads, 0, stream,
                static_cast<uint4*>(pixels), static_cast<const uint16_t*>(planes), shape);
}

cudaError_t TakeChannels(void* planes, const void* pixels, FewChannels shape, cudaStream_t stream) {
  return Launch(TakePixels, Strided(shape.batch * shape.pixels), kThreads, 0, stream,
                static_cast<uint16_t*>(planes), static_cast<const uint4*>(pixels), shape);
}

}  // namespace muster::kernels::cuda
