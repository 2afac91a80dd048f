#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lib/engine/reference/operators.h"
#include "lib/engine/reference/tensor.h"

namespace muster::reference {
namespace {

struct Attending {
  int64_t heads;
  bool causal;
  double scale;
  const Tensor* mask;  // null: none
};

// Returns y[B, T, D] and the log of each softmax's sum, from q[B, T, C], k[B, S, C] and v[B, S, D].
std::vector<Tensor> Attend(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Attending& options) {
  const int64_t batch = q.shape[0], queries = q.shape[1], keys = k.shape[1];
  const int64_t key_size = q.last() / options.heads, value_size = v.last() / options.heads;
  Tensor y = Zeros({batch, queries, v.last()}), lse = Zeros({batch, options.heads, queries});
  ForEach(lse.shape, [&](const Index& index) {
    const int64_t b = index[0], h = index[1], t = index[2];
    const int64_t visible = options.causal ? std::min(keys, t + keys - queries + 1) : keys;
    std::vector<double> weights;
    double sum = 0;
    for (int64_t s = 0; s < visible; ++s) {
      double score = 0;
      for (int64_t c = h * key_size; c < (h + 1) * key_size; ++c)
        score += q({b, t, c}) * k({b, s, c});
      score *= options.scale;
      if (options.mask != nullptr) score += options.mask->Broadcast({{b, h, t, s}});
      sum += weights.emplace_back(std::exp(score));
    }
    lse.at(index) = std::log(sum);
    for (int64_t s = 0; s < visible; ++s) {
      for (int64_t c = h * value_size; c < (h + 1) * value_size; ++c) {
        y.at({b, t, c}) += weights[s] / sum * v({b, s, c});
      }
    }
  });
  return {y, lse};
}

std::vector<Tensor> SelfAttention(const Call& call) {
  const Tensor& qkv = call[0];
  const int64_t channels = qkv.last() / 3, heads = call.Integer("heads", 0);
  auto part = [&](int64_t p) {
    return Generate({qkv.shape[0], qkv.shape[1], channels}, [&](const Index& index) {
      return qkv({index[0], index[1], p * channels + index[2]});
    });
  };
  return Attend(part(0), part(1), part(2),
                {.heads = heads,
                 .causal = call.Integer("causal", 0) != 0,
                 .scale = 1 / std::sqrt(static_cast<double>(channels / heads)),
                 .mask = call.has(1) ? &call[1] : nullptr});
}

std::vector<Tensor> Attention(const Call& call) {
  const int64_t heads = call.Integer("heads", 0);
  const double size = static_cast<double>(call[0].last() / heads);
  return Attend(call[0], call[1], call[2],
                {.heads = heads,
                 .causal = call.Integer("causal", 0) != 0,
                 .scale = call.Number("scale", 1 / std::sqrt(size)),
                 .mask = call.has(3) ? &call[3] : nullptr});
}

}  // namespace

void AddAttention(Operators& operators) {
  operators["SelfAttention"] = SelfAttention;
  operators["Attention"] = Attention;
}

}  // namespace muster::reference
