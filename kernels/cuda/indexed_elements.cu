#include "kernels/cuda/index_sort.h"
#include "kernels/cuda/indexed_elements.h"
#include "kernels/cuda/launch.cuh"

namespace muster::kernels::cuda {
namespace {

// The tensor's element for element `at` of the index. An index out of range is treated as 0 and, if
// `out_of_range` is not null, reported.
__device__ int64_t Target(const IndexedElements& elements, const int32_t* index, int64_t at,
                          OutOfRange* out_of_range) {
  int32_t along = index[at];
  if (along < 0) along += elements.size;
  if (along < 0 || along >= elements.size) {
    if (out_of_range != nullptr) Report(out_of_range, index[at]);
    along = 0;
  }
  int64_t target = 0;
  auto rest = static_cast<uint32_t>(at);
  for (int d = 0; d < elements.rank; ++d) {
    const uint32_t outer = rest / elements.index_sizes[d];
    const int64_t place = rest - outer * elements.index_sizes[d];
    target += (d == elements.axis ? along : place) * elements.tensor_strides[d];
    rest = outer;
  }
  return target;
}

// Copies the indexed elements. W is a word of an element's size.
template <typename W>
__global__ void TakeWords(W* y, const W* x, const int32_t* index, IndexedElements elements,
                          OutOfRange* out_of_range) {
  for (int64_t i = ThreadIndex(); i < elements.indices; i += ThreadCount()) {
    y[i] = x[Target(elements, index, i, out_of_range)];
  }
}

__global__ void MakeTargetPairs(int32_t* keys, int32_t* places, const int32_t* index,
                                IndexedElements elements, OutOfRange* out_of_range) {
  for (int64_t i = ThreadIndex(); i < elements.indices; i += ThreadCount()) {
    keys[i] = static_cast<int32_t>(Target(elements, index, i, out_of_range));
    places[i] = static_cast<int32_t>(i);
  }
}

// Floating types are summed in f32.
template <typename T>
struct Summand {
  using Sum = float;
  static __device__ float Load(T x) { return ToFloat(x); }
  static __device__ T Store(float sum) { return FromFloat<T>(sum); }
};

// Integers are summed as integers.
template <>
struct Summand<int32_t> {
  using Sum = int32_t;
  static __device__ int32_t Load(int32_t x) { return x; }
  static __device__ int32_t Store(int32_t sum) { return sum; }
};

// Adds each term to the element of y that its key names. The keys are sorted. Each place has a
// thread; the thread at the first of equal keys adds all of their terms. kUnroll loads are in
// flight at once.
template <typename T>
__global__ void AddByKey(T* y, const T* terms, const int32_t* keys, const int32_t* places,
                         int64_t n) {
  using Of = Summand<T>;
  constexpr int kUnroll = 4;
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    const int32_t key = keys[i];
    if (i > 0 && keys[i - 1] == key) continue;
    int64_t end = i + 1;
    while (end < n && keys[end] == key) ++end;
    typename Of::Sum sum = Of::Load(y[key]);
    int64_t j = i;
    for (; j + kUnroll <= end; j += kUnroll) {
      typename Of::Sum loaded[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) loaded[k] = Of::Load(terms[places[j + k]]);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) sum += loaded[k];
    }
    for (; j < end; ++j) sum += Of::Load(terms[places[j]]);
    y[key] = Of::Store(sum);
  }
}

// y += the terms by index.
template <typename T>
cudaError_t AddByIndex(void* y, const void* terms, const int32_t* index,
                       const IndexedElements& elements, void* workspace, OutOfRange* out_of_range,
                       cudaStream_t stream) {
  const int64_t n = elements.indices;
  IndexPairs pairs = PairsToSort(workspace, n);
  MUSTER_RETURN_IF_CUDA_ERROR(Launch(MakeTargetPairs, Strided(n), kThreads, 0, stream, pairs.keys,
                                     pairs.places, index, elements, out_of_range));
  MUSTER_RETURN_IF_CUDA_ERROR(SortPairs(pairs, n, elements.tensor_elements, workspace, stream));
  return Launch(AddByKey<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(y),
                static_cast<const T*>(terms), pairs.keys, pairs.places, n);
}

// Sets `last` to -1 for every element of the tensor that the index names. Several threads may write
// the same value.
__global__ void ClearLast(int32_t* last, const int32_t* index, IndexedElements elements,
                          OutOfRange* out_of_range) {
  for (int64_t i = ThreadIndex(); i < elements.indices; i += ThreadCount()) {
    last[Target(elements, index, i, out_of_range)] = -1;
  }
}

// Sets cleared entries to the last element of the index that names them: a maximum, so the order of
// threads does not matter.
__global__ void FindLast(int32_t* last, const int32_t* index, IndexedElements elements) {
  for (int64_t i = ThreadIndex(); i < elements.indices; i += ThreadCount()) {
    atomicMax(&last[Target(elements, index, i, nullptr)], static_cast<int32_t>(i));
  }
}

template <typename W>
__global__ void PutLast(W* y, const W* updates, const int32_t* last, const int32_t* index,
                        IndexedElements elements) {
  for (int64_t i = ThreadIndex(); i < elements.indices; i += ThreadCount()) {
    const int64_t target = Target(elements, index, i, nullptr);
    if (last[target] == i) y[target] = updates[i];
  }
}

template <typename W>
__global__ void TakeWhereLast(W* dupdates, const W* dy, const int32_t* last, const int32_t* index,
                              IndexedElements elements) {
  for (int64_t i = ThreadIndex(); i < elements.indices; i += ThreadCount()) {
    const int64_t target = Target(elements, index, i, nullptr);
    dupdates[i] = last[target] == i ? dy[target] : W{0};
  }
}

template <typename W>
__global__ void PutZeros(W* ddata, const int32_t* index, IndexedElements elements) {
  for (int64_t i = ThreadIndex(); i < elements.indices; i += ThreadCount()) {
    ddata[Target(elements, index, i, nullptr)] = 0;
  }
}

cudaError_t LaunchFindLast(int32_t* last, const int32_t* index, const IndexedElements& elements,
                           OutOfRange* out_of_range, cudaStream_t stream) {
  const dim3 grid = Strided(elements.indices);
  MUSTER_RETURN_IF_CUDA_ERROR(
      Launch(ClearLast, grid, kThreads, 0, stream, last, index, elements, out_of_range));
  return Launch(FindLast, grid, kThreads, 0, stream, last, index, elements);
}

// Calls f with a word of `element_bytes` bytes.
template <typename F>
cudaError_t ForWord(int element_bytes, F f) {
  return element_bytes == 2 ? f(uint16_t{}) : f(uint32_t{});
}

}  // namespace

IndexedElements::IndexedElements(const std::vector<int64_t>& tensor,
                                 const std::vector<int64_t>& index, int64_t index_axis)
    : indices(1),
      tensor_elements(1),
      size(static_cast<int32_t>(tensor[index_axis])),
      axis(0),
      rank(0),
      index_sizes{},
      tensor_strides{} {
  bool extends = false;  // it is merged into the previous dimension
  for (auto d = static_cast<int64_t>(tensor.size()) - 1; d >= 0; --d) {
    if (d == index_axis) axis = rank;
    if (extends && d != index_axis) {
      index_sizes[rank - 1] *= static_cast<uint32_t>(index[d]);
    } else {
      index_sizes[rank] = static_cast<uint32_t>(index[d]);
      tensor_strides[rank] = tensor_elements;
      ++rank;
    }
    extends = d != index_axis && index[d] == tensor[d];
    indices *= index[d];
    tensor_elements *= tensor[d];
  }
}

cudaError_t GatherElements(void* y, const void* x, const int32_t* index,
                           const IndexedElements& elements, int element_bytes,
                           OutOfRange* out_of_range, cudaStream_t stream) {
  return ForWord(element_bytes, [&](auto word) {
    using W = decltype(word);
    return Launch(TakeWords<W>, Strided(elements.indices), kThreads, 0, stream, static_cast<W*>(y),
                  static_cast<const W*>(x), index, elements, out_of_range);
  });
}

int64_t GatherElementsGradWorkspaceBytes(const IndexedElements& elements) {
  return IndexSortWorkspaceBytes(elements.indices);
}

cudaError_t GatherElementsGrad(void* dx, const void* dy, const int32_t* index, Type type,
                               const IndexedElements& elements, void* workspace,
                               cudaStream_t stream) {
  const int64_t bytes = elements.tensor_elements * Bytes(type);
  MUSTER_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(dx, 0, static_cast<size_t>(bytes), stream));
  return ForFloating(type, [&](auto one) {
    return AddByIndex<decltype(one)>(dx, dy, index, elements, workspace, nullptr, stream);
  });
}

int64_t ScatterElementsWorkspaceBytes(const IndexedElements& elements, ScatterReduction reduction) {
  if (reduction == ScatterReduction::kAdd) return IndexSortWorkspaceBytes(elements.indices);
  return elements.tensor_elements * static_cast<int64_t>(sizeof(int32_t));
}

cudaError_t ScatterElements(void* y, const void* data, const int32_t* index, const void* updates,
                            Type type, const IndexedElements& elements, ScatterReduction reduction,
                            void* workspace, OutOfRange* out_of_range, cudaStream_t stream) {
  const int64_t bytes = elements.tensor_elements * Bytes(type);
  MUSTER_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(y, data, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
  if (reduction == ScatterReduction::kAdd) {
    if (type == Type::kI32) {
      return AddByIndex<int32_t>(y, updates, index, elements, workspace, out_of_range, stream);
    }
    return ForFloating(type, [&](auto one) {
      return AddByIndex<decltype(one)>(y, updates, index, elements, workspace, out_of_range,
                                       stream);
    });
  }
  auto* last = static_cast<int32_t*>(workspace);
  MUSTER_RETURN_IF_CUDA_ERROR(LaunchFindLast(last, index, elements, out_of_range, stream));
  return ForWord(static_cast<int>(Bytes(type)), [&](auto word) {
    using W = decltype(word);
    return Launch(PutLast<W>, Strided(elements.indices), kThreads, 0, stream, static_cast<W*>(y),
                  static_cast<const W*>(updates), last, index, elements);
  });
}

cudaError_t ScatterElementsGradData(void* ddata, const void* dy, const int32_t* index,
                                    const IndexedElements& elements, int element_bytes,
                                    cudaStream_t stream) {
  const int64_t bytes = elements.tensor_elements * element_bytes;
  MUSTER_RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(ddata, dy, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
  return ForWord(element_bytes, [&](auto word) {
    using W = decltype(word);
    return Launch(PutZeros<W>, Strided(elements.indices), kThreads, 0, stream,
                  static_cast<W*>(ddata), index, elements);
  });
}

cudaError_t ScatterElementsGradUpdates(void* dupdates, const void* dy, const int32_t* index,
                                       const IndexedElements& elements, int element_bytes,
                                       void* workspace, cudaStream_t stream) {
  auto* last = static_cast<int32_t*>(workspace);
  MUSTER_RETURN_IF_CUDA_ERROR(LaunchFindLast(last, index, elements, nullptr, stream));
  return ForWord(element_bytes, [&](auto word) {
    using W = decltype(word);
    return Launch(TakeWhereLast<W>, Strided(elements.indices), kThreads, 0, stream,
                  static_cast<W*>(dupdates), static_cast<const W*>(dy), last, index, elements);
  });
}

}  // namespace muster::kernels::cuda
