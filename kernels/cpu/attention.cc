#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_loops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd_level.h"

namespace muster::kernels {
namespace {

// The size of a block of scores. The block is on the stack of its thread, and fits in the
// second-level cache.
constexpr int64_t kQueries = 64;
constexpr int64_t kKeys = 512;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const AttentionLoops& Loops() {
  return ForThisProcessor(baseline::kAttentionLoops, avx2::kAttentionLoops,
                          avx512::kAttentionLoops);
}

// Row t of a tensor of one sample starts at data + t * stride.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  T* operator[](int64_t t) const { return data + t * stride; }
  Rows From(int64_t t) const { return {data + t * stride, stride}; }
  operator MatrixView() const { return {data, stride}; }  // NOLINT
  MatrixView Transposed() const { return MatrixView{data, stride}.T(); }
};

// A tensor in which several samples are stored one after the other.
template <typename T>
struct Batched {
  T* data;
  int64_t stride;  // stride of a row
  int64_t rows;    // rows of a sample

  Rows<T> Head(int64_t sample, int64_t first_channel) const {
    return {data + sample * rows * stride + first_channel, stride};
  }
};

struct Tensors {
  Batched<const float> q, k, v;
};

// One head of one sample.
struct Head {
  const AttentionShape& shape;
  Rows<const float> q, k, v;
  const float* mask;  // mask of query 0; null: none
  int64_t mask_stride;

  int64_t size() const { return shape.channels / shape.heads; }
  int64_t value_size() const { return shape.values / shape.heads; }
  // Returns how many keys a query sees; they are the first ones.
  int64_t Visible(int64_t query) const {
    if (!shape.causal) return shape.keys;
    return std::clamp<int64_t>(query + 1 + shape.keys - shape.queries, 0, shape.keys);
  }
  const float* Mask(int64_t query, int64_t key) const {
    return mask == nullptr ? nullptr : mask + query * mask_stride + key;
  }
};

Head HeadOf(const Tensors& tensors, const AttentionMask& mask, const AttentionShape& shape,
            int64_t sample, int64_t head) {
  const int64_t first = head * (shape.channels / shape.heads);
  const float* head_mask = mask.data == nullptr
                               ? nullptr
                               : mask.data + sample * mask.batch_stride + head * mask.head_stride;
  return {.shape = shape,
          .q = tensors.q.Head(sample, first),
          .k = tensors.k.Head(sample, first),
          .v = tensors.v.Head(sample, head * (shape.values / shape.heads)),
          .mask = head_mask,
          .mask_stride = mask.query_stride};
}

// Computes queries [begin, end) of a head.
void ForwardBlock(const Head& head, Rows<float> y, float* lse, int64_t begin, int64_t end) {
  const AttentionLoops& loops = Loops();
  const int64_t queries = end - begin, width = head.value_size();
  float scores[kQueries * kKeys];
  AttentionLoops::Running running[kQueries];
  std::fill_n(running, queries, AttentionLoops::Running{.max = -kInfinity, .sum = 0});

  const int64_t visible = head.Visible(end - 1);
  for (int64_t first = 0; first < visible; first += kKeys) {
    const int64_t keys = std::min(kKeys, visible - first);
    SerialGemm(scores, keys, head.q.From(begin), head.k.From(first).Transposed(),
               {queries, keys, head.size()});
    for (int64_t t = 0; t < queries; ++t) {
      const int64_t seen = std::clamp<int64_t>(head.Visible(begin + t) - first, 0, keys);
      float* row = scores + t * keys;
      std::fill(row + seen, row + keys, 0.0f);
      if (seen == 0) continue;
      const float correction = loops.softmax_block(row, head.Mask(begin + t, first),
                                                   head.shape.scale, seen, &running[t]);
      if (first > 0 && correction != 1) loops.scale(y[begin + t], correction, width);
    }
    SerialGemm(y[begin], y.stride, {scores, keys}, head.v.From(first), {queries, width, keys},
               first == 0 ? GemmMode::kAssign : GemmMode::kAccumulate);
  }
  for (int64_t t = 0; t < queries; ++t) {
    const auto [max, sum] = running[t];
    if (sum > 0) {
      loops.scale(y[begin + t], 1 / sum, width);
    } else if (sum == 0) {  // not NaN: the query sees no key
      std::fill_n(y[begin + t], width, 0.0f);
    }
    lse[begin + t] = max + std::log(sum);
  }
}

struct HeadGradients {
  Rows<float> dq, dk, dv;
};

// Computes the gradients of queries [begin, end) of a head. Assigns their dq; assigns dk and dv, or
// adds to them, as `mode` says.
void BackwardBlock(const Head& head, const HeadGradients& gradients, Rows<const float> dy,
                   Rows<const float> y, const float* lse, int64_t begin, int64_t end,
                   GemmMode mode) {
  const AttentionLoops& loops = Loops();
  const int64_t queries = end - begin, size = head.size(), width = head.value_size();
  float scores[kQueries * kKeys], dscores[kQueries * kKeys];
  float means[kQueries];  // means of dp, weighted by p
  for (int64_t t = 0; t < queries; ++t) {
    means[t] = static_cast<float>(loops.dot(dy[begin + t], y[begin + t], width));
  }

  const int64_t visible = head.Visible(end - 1);
  if (visible == 0) {
    for (int64_t t = begin; t < end; ++t) std::fill_n(gradients.dq[t], size, 0.0f);
  }
  for (int64_t first = 0; first < visible; first += kKeys) {
    const int64_t keys = std::min(kKeys, visible - first);
    SerialGemm(scores, keys, head.q.From(begin), head.k.From(first).Transposed(),
               {queries, keys, size});
    SerialGemm(dscores, keys, dy.From(begin), head.v.From(first).Transposed(),
               {queries, keys, width});
    for (int64_t t = 0; t < queries; ++t) {
      const bool blind = lse[begin + t] == -kInfinity;
      const int64_t seen =
          blind ? 0 : std::clamp<int64_t>(head.Visible(begin + t) - first, 0, keys);
      float* row = scores + t * keys;
      float* drow = dscores + t * keys;
      std::fill(row + seen, row + keys, 0.0f);
      std::fill(drow + seen, drow + keys, 0.0f);
      if (seen == 0) continue;
      loops.softmax_block_grad(row, drow, head.Mask(begin + t, first), head.shape.scale,
                               lse[begin + t], means[t], seen);
    }
    const MatrixView p{scores, keys}, ds{dscores, keys};
    SerialGemm(gradients.dv[first], gradients.dv.stride, p.T(), dy.From(begin),
               {keys, width, queries}, mode);
    SerialGemm(gradients.dk[first], gradients.dk.stride, ds.T(), head.q.From(begin),
               {keys, size, queries}, mode);
    SerialGemm(gradients.dq[begin], gradients.dq.stride, ds, head.k.From(first),
               {queries, size, keys}, first == 0 ? GemmMode::kAssign : GemmMode::kAccumulate);
  }
}

void Forward(float* y, float* lse, const Tensors& tensors, const AttentionMask& mask,
             const AttentionShape& shape) {
  const Batched<float> out{y, shape.values, shape.queries};
  const int64_t blocks = (shape.queries + kQueries - 1) / kQueries;
  ParallelFor(shape.batch * shape.heads * blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t sample = task / blocks / shape.heads, head = task / blocks % shape.heads;
      const int64_t begin = task % blocks * kQueries;
      ForwardBlock(HeadOf(tensors, mask, shape, sample, head),
                   out.Head(sample, head * (shape.values / shape.heads)),
                   lse + task / blocks * shape.queries, begin,
                   std::min(begin + kQueries, shape.queries));
    }
  });
}

void Backward(const Batched<float>& dq, const Batched<float>& dk, const Batched<float>& dv,
              const float* dy, const float* y, const float* lse, const Tensors& tensors,
              const AttentionMask& mask, const AttentionShape& shape) {
  const Batched<const float> dout{dy, shape.values, shape.queries};
  const Batched<const float> out{y, shape.values, shape.queries};
  ParallelFor(shape.batch * shape.heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t sample = task / shape.heads, h = task % shape.heads;
      const int64_t channel = h * (shape.channels / shape.heads);
      const int64_t value = h * (shape.values / shape.heads);
      const Head head = HeadOf(tensors, mask, shape, sample, h);
      const HeadGradients gradients{.dq = dq.Head(sample, channel),
                                    .dk = dk.Head(sample, channel),
                                    .dv = dv.Head(sample, value)};
      // The last block of queries sees every key, so it assigns dk and dv and the others add to
      // them.
      GemmMode mode = GemmMode::kAssign;
      for (int64_t begin = (shape.queries - 1) / kQueries * kQueries; begin >= 0;
           begin -= kQueries) {
        BackwardBlock(head, gradients, dout.Head(sample, value), out.Head(sample, value),
                      lse + task * shape.queries, begin, std::min(begin + kQueries, shape.queries),
                      mode);
        mode = GemmMode::kAccumulate;
      }
    }
  });
}

Tensors Separate(const float* q, const float* k, const float* v, const AttentionShape& shape) {
  return {.q = {q, shape.channels, shape.queries},
          .k = {k, shape.channels, shape.keys},
          .v = {v, shape.values, shape.keys}};
}

// Returns q, k or v: a third of each row of qkv.
template <typename T>
Batched<T> Third(T* qkv, int i, const AttentionShape& shape) {
  return {qkv + i * shape.channels, 3 * shape.channels, shape.queries};
}

Tensors Packed(const float* qkv, const AttentionShape& shape) {
  return {.q = Third(qkv, 0, shape), .k = Third(qkv, 1, shape), .v = Third(qkv, 2, shape)};
}

}  // namespace

AttentionMask::AttentionMask(const float* data, Dimensions d) : data(data) {
  query_stride = d[2] == 1 ? 0 : d[3];
  head_stride = d[1] == 1 ? 0 : d[2] * d[3];
  batch_stride = d[0] == 1 ? 0 : d[1] * d[2] * d[3];
}

void Attention(float* y, float* lse, const float* q, const float* k, const float* v,
               const AttentionMask& mask, const AttentionShape& shape) {
  Forward(y, lse, Separate(q, k, v, shape), mask, shape);
}

void AttentionGrad(float* dq, float* dk, float* dv, const float* dy, const float* q, const float* k,
                   const float* v, const float* y, const float* lse, const AttentionMask& mask,
                   const AttentionShape& shape) {
  Backward({dq, shape.channels, shape.queries}, {dk, shape.channels, shape.keys},
           {dv, shape.values, shape.keys}, dy, y, lse, Separate(q, k, v, shape), mask, shape);
}

void SelfAttention(float* y, float* lse, const float* qkv, const AttentionMask& mask,
                   const AttentionShape& shape) {
  Forward(y, lse, Packed(qkv, shape), mask, shape);
}

void SelfAttentionGrad(float* dqkv, const float* dy, const float* qkv, const float* y,
                       const float* lse, const AttentionMask& mask, const AttentionShape& shape) {
  Backward(Third(dqkv, 0, shape), Third(dqkv, 1, shape), Third(dqkv, 2, shape), dy, y, lse,
           Packed(qkv, shape), mask, shape);
}

}  // namespace muster::kernels
