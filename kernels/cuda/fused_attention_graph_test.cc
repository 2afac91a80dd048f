// Tests the operations that cuDNN gets. A stand-in for its backend runs them one after
// another on the host, and the results are compared with a plain implementation of attention.
// fused_attention_test checks that cuDNN has kernels for them.
#include <cudnn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/fused_attention.h"

namespace muster::kernels::cuda {
namespace {

uint16_t ToBf16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
double FromBf16(uint16_t value) { return std::bit_cast<float>(uint32_t{value} << 16); }

size_t BytesOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;  // an enumeration
  }
}

// A descriptor: the attributes that were set. It is immutable once finalized.
struct Described {
  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, std::vector<std::byte>> attributes = {};
  bool is_final = false;

  bool Has(cudnnBackendAttributeName_t name) const { return attributes.count(name) != 0; }

  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const std::vector<std::byte>& bytes = attributes.at(name);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  template <typename T>
  T Get(cudnnBackendAttributeName_t name) const {
    T value;
    EXPECT_EQ(attributes.at(name).size(), sizeof(T));
    std::memcpy(&value, attributes.at(name).data(), sizeof(T));
    return value;
  }
  const Described& Part(cudnnBackendAttributeName_t name) const {
    return *static_cast<const Described*>(Get<const void*>(name));
  }
};

using Index = std::array<int64_t, 4>;

// Runs operations on the memory of a variant pack.
class Interpreter {
 public:
  void Run(const Described& graph, const Described& pack) {
    const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto data = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (size_t i = 0; i < ids.size(); ++i) memory_[ids[i]] = data.at(i);
    for (const void* operation : graph.All<const void*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
      CarryOut(*static_cast<const Described*>(operation));
    }
    for (int64_t id : ids) EXPECT_TRUE(used_.count(id)) << "no operation has tensor " << id;
  }

 private:
  static Index Sizes(const Described& tensor) {
    Index sizes;
    std::ranges::copy(tensor.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), sizes.begin());
    return sizes;
  }

  // The offset of an element; a dimension of size 1 repeats.
  static int64_t Offset(const Described& tensor, const Index& at) {
    const auto strides = tensor.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    const Index sizes = Sizes(tensor);
    int64_t offset = 0;
    for (int i = 0; i < 4; ++i) offset += sizes[i] == 1 ? 0 : at[i] * strides[i];
    return offset;
  }

  template <typename F>
  static void ForEach(const Index& sizes, F f) {
    Index at;
    for (at[0] = 0; at[0] < sizes[0]; ++at[0]) {
      for (at[1] = 0; at[1] < sizes[1]; ++at[1]) {
        for (at[2] = 0; at[2] < sizes[2]; ++at[2]) {
          for (at[3] = 0; at[3] < sizes[3]; ++at[3]) f(at);
        }
      }
    }
  }

  static bool IsVirtual(const Described& tensor) {
    return tensor.Has(CUDNN_ATTR_TENSOR_IS_VIRTUAL) &&
           tensor.Get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  }

  double Read(const Described& tensor, int64_t offset) {
    const auto id = tensor.Get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    if (IsVirtual(tensor)) return virtual_.at(id).at(offset);
    used_[id] = true;
    const void* data = memory_.at(id);  // throws for an unknown id, and the test fails
    if (tensor.Get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_FLOAT) {
      return static_cast<const float*>(data)[offset];
    }
    return FromBf16(static_cast<const uint16_t*>(data)[offset]);
  }
  double At(const Described& tensor, const Index& at) { return Read(tensor, Offset(tensor, at)); }

  void Write(const Described& tensor, const Index& at, double value) {
    const auto id = tensor.Get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
    const int64_t offset = Offset(tensor, at);
    const bool is_bf16 =
        tensor.Get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE) == CUDNN_DATA_BFLOAT16;
    if (IsVirtual(tensor)) {
      virtual_[id][offset] = is_bf16 ? FromBf16(ToBf16(value)) : value;
      return;
    }
    used_[id] = true;
    void* data = memory_.at(id);
    if (is_bf16) {
      static_cast<uint16_t*>(data)[offset] = ToBf16(value);
    } else {
      static_cast<float*>(data)[offset] = static_cast<float>(value);
    }
  }

  void CarryOut(const Described& operation) {
    switch (operation.type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return Multiply(operation.Part(CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                        operation.Part(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                        operation.Part(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return Reduce(operation.Part(CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
                      operation.Part(CUDNN_ATTR_OPERATION_REDUCTION_YDESC),
                      operation.Part(CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                          .Get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR));
      case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: {
        const Described& x = operation.Part(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        const Described& y = operation.Part(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
        ForEach(Sizes(y), [&](const Index& at) { Write(y, at, Read(x, Offset(y, at))); });
        return;
      }
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return Apply(operation);
      default:
        ADD_FAILURE() << "operation " << operation.type;
    }
  }

  void Multiply(const Described& a, const Described& b, const Described& c) {
    const int64_t inner = Sizes(a)[3];
    ASSERT_EQ(inner, Sizes(b)[2]);
    ForEach(Sizes(c), [&](const Index& at) {
      double sum = 0;
      for (int64_t i = 0; i < inner; ++i) {
        sum += At(a, {at[0], at[1], at[2], i}) * At(b, {at[0], at[1], i, at[3]});
      }
      Write(c, at, sum);
    });
  }

  void Reduce(const Described& x, const Described& y, cudnnReduceTensorOp_t by) {
    ForEach(Sizes(y), [&](Index at) {
      double result = by == CUDNN_REDUCE_TENSOR_ADD ? 0 : -std::numeric_limits<double>::infinity();
      const Index to = at;
      for (at[3] = 0; at[3] < Sizes(x)[3]; ++at[3]) {
        result = by == CUDNN_REDUCE_TENSOR_ADD ? result + At(x, at) : std::max(result, At(x, at));
      }
      Write(y, to, result);
    });
  }

  void Apply(const Described& operation) {
    const Described& function = operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = function.Get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const Described& x = operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const Described& y = operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const auto b = [&](const Index& at) {
      return At(operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC), at);
    };
    const auto value = [&](const Index& at) -> double {
      switch (mode) {
        case CUDNN_POINTWISE_ADD:
          return At(x, at) + b(at);
        case CUDNN_POINTWISE_SUB:
          return At(x, at) - b(at);
        case CUDNN_POINTWISE_MUL:
          return At(x, at) * b(at);
        case CUDNN_POINTWISE_DIV:
          return At(x, at) / b(at);
        case CUDNN_POINTWISE_EXP:
          return std::exp(At(x, at));
        case CUDNN_POINTWISE_LOG:
          return std::log(At(x, at));
        case CUDNN_POINTWISE_IDENTITY:
          return At(x, at);
        case CUDNN_POINTWISE_GEN_INDEX:
          return static_cast<double>(at[function.Get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS)]);
        case CUDNN_POINTWISE_CMP_GE:
          return At(x, at) >= b(at) ? 1 : 0;
        case CUDNN_POINTWISE_BINARY_SELECT:
          return At(operation.Part(CUDNN_ATTR_OPERATION_POINTWISE_TDESC), at) != 0 ? At(x, at)
                                                                                   : b(at);
        default:
          ADD_FAILURE() << "pointwise mode " << mode;
          return 0;
      }
    };
    ForEach(Sizes(y), [&](const Index& at) { Write(y, at, value(at)); });
  }

  std::map<int64_t, void*> memory_;
  std::map<int64_t, std::map<int64_t, double>> virtual_;  // by offset
  std::map<int64_t, bool> used_;
};

}  // namespace
}  // namespace muster::kernels::cuda

// The stand-in suggests one kernel, which interprets the operations.
using muster::kernels::cuda::Described;

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  *made = new Described{type};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Described*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  auto* described = static_cast<Described*>(descriptor);
  if (described->is_final) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      if (!static_cast<Described* const*>(values)[i]->is_final) return CUDNN_STATUS_BAD_PARAM;
    }
  }
  const auto* bytes = static_cast<const std::byte*>(values);
  described->attributes[name].assign(bytes, bytes + count * muster::kernels::cuda::BytesOf(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  static_cast<Described*>(descriptor)->is_final = true;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, int64_t count_max,
                                       int64_t* count, void* values) {
  *count = 1;
  if (count_max == 0) return CUDNN_STATUS_SUCCESS;
  auto* described = static_cast<Described*>(descriptor);
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    auto* suggestion = static_cast<Described**>(values)[0];
    suggestion->attributes = described->attributes;
    suggestion->is_final = true;
  } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) {
    *static_cast<int64_t*>(values) = 0;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  const Described& suggestion =
      static_cast<Described*>(plan)->Part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  muster::kernels::cuda::Interpreter().Run(suggestion.Part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
                                           *static_cast<Described*>(pack));
  return CUDNN_STATUS_SUCCESS;
}

const char* cudnnGetErrorString(cudnnStatus_t) { return "an error of the stand-in"; }
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) message[0] = '\0';
}

}  // extern "C"

namespace muster::kernels::cuda {
namespace {

// A view of q, k, v or y, or of a gradient: [batch, rows, heads, columns]. `row` is the distance
// between two rows in elements; it may be larger than heads * columns.
struct Rows {
  const AttentionShape& shape;
  int64_t rows, columns, row;  // columns: of a head
  uint16_t* data;

  uint16_t& At(int64_t b, int64_t h, int64_t r, int64_t c) const {
    return data[(b * rows + r) * row + h * columns + c];
  }
};

std::vector<uint16_t> Numbers(int64_t count, uint32_t seed) {
  std::vector<uint16_t> numbers(count);
  for (uint16_t& number : numbers) {
    seed = seed * 1664525 + 1013904223;
    number = ToBf16(static_cast<double>(seed >> 8) * 0x1p-22 - 2);
  }
  return numbers;
}

struct Case {
  AttentionShape shape;
  bool deterministic;
  AttentionMaskShape mask = {};
};

class FusedAttentionGraphTest : public testing::TestWithParam<Case> {
 protected:
  // Places q, k and v in one tensor if their rows have equal length, else one after another.
  void SetUp() override {
    const int64_t q = s_.batch * s_.queries * s_.q_row;
    const int64_t k = s_.batch * s_.keys * s_.k_row, v = s_.batch * s_.keys * s_.v_row;
    const int64_t columns = s_.heads * s_.head_channels;
    if (s_.q_row > columns) {
      places_ = {0, columns, 2 * columns};
      inputs_ = Numbers(q, 1);
    } else {
      places_ = {0, q, q + k};
      inputs_ = Numbers(q + k + v, 1);
    }
    gradients_.resize(inputs_.size());
    dy_ = Numbers(s_.batch * s_.queries * s_.heads * s_.head_values, 2);
    y_.resize(dy_.size());
    lse_.resize(s_.batch * s_.heads * s_.queries);
    mask_.resize(m_.batch * m_.heads * m_.queries * s_.keys);
    for (size_t i = 0; i < mask_.size(); ++i) {
      mask_[i] = i % s_.keys > 0 && i % 3 == 1 ? -1e30F : 0.1F * static_cast<float>(i % 7);
    }
  }

  std::unique_ptr<FusedAttention> Prepare(AttentionPart part) {
    std::unique_ptr<FusedAttention> made;
    EXPECT_STREQ(FusedAttention::Create(handle_, part, s_, m_,
                                        {.deterministic = GetParam().deterministic}, made),
                 nullptr);
    workspace_.resize(made->workspace_bytes());
    return made;
  }

  void Forward() {
    EXPECT_STREQ(Prepare(AttentionPart::kForward)
                     ->Forward(y_.data(), lse_.data(), Inputs(), workspace_.data()),
                 nullptr);
  }
  void Backward() {
    EXPECT_STREQ(
        Prepare(AttentionPart::kBackward)
            ->Backward({&gradients_[places_[0]], &gradients_[places_[1]], &gradients_[places_[2]]},
                       dy_.data(), y_.data(), lse_.data(), Inputs(), workspace_.data()),
        nullptr);
  }

  AttentionInputs Inputs() {
    return {&inputs_[places_[0]], &inputs_[places_[1]], &inputs_[places_[2]], {mask_.data()}};
  }
  float Mask(int64_t b, int64_t h, int64_t t, int64_t key) const {
    if (m_.batch == 0) return 0;
    return mask_[((b % m_.batch * m_.heads + h % m_.heads) * m_.queries + t % m_.queries) *
                     s_.keys +
                 key];
  }
  Rows Q(std::vector<uint16_t>& of) {
    return {s_, s_.queries, s_.head_channels, s_.q_row, &of[places_[0]]};
  }
  Rows K(std::vector<uint16_t>& of) {
    return {s_, s_.keys, s_.head_channels, s_.k_row, &of[places_[1]]};
  }
  Rows V(std::vector<uint16_t>& of) {
    return {s_, s_.keys, s_.head_values, s_.v_row, &of[places_[2]]};
  }
  Rows Y(std::vector<uint16_t>& of) {
    return {s_, s_.queries, s_.head_values, s_.heads * s_.head_values, of.data()};
  }

  // Returns the probabilities of the keys that query t of a head sees, and sets `lse`.
  std::vector<double> Probabilities(int64_t b, int64_t h, int64_t t, double& lse) {
    std::vector<double> p(s_.causal ? t + 1 : s_.keys);
    double sum = 0;
    for (size_t key = 0; key < p.size(); ++key) {
      double score = 0;
      for (int64_t c = 0; c < s_.head_channels; ++c) {
        score += FromBf16(Q(inputs_).At(b, h, t, c)) *
                 FromBf16(K(inputs_).At(b, h, static_cast<int64_t>(key), c));
      }
      sum += p[key] = std::exp(score * s_.scale + Mask(b, h, t, static_cast<int64_t>(key)));
    }
    for (double& probability : p) probability /= sum;
    lse = std::log(sum);
    return p;
  }

  template <typename F>
  void ForEachQuery(F f) {
    for (int64_t b = 0; b < s_.batch; ++b) {
      for (int64_t h = 0; h < s_.heads; ++h) {
        for (int64_t t = 0; t < s_.queries; ++t) f(b, h, t);
      }
    }
  }

  // Probabilities and gradients of scores are rounded to bf16 as inputs of a product, results after
  // it.
  static constexpr double kTolerance = 0.06;

  const AttentionShape s_ = GetParam().shape;
  const AttentionMaskShape m_ = GetParam().mask;
  const cudnnHandle_t handle_ = reinterpret_cast<cudnnHandle_t>(this);  // never dereferenced
  std::array<int64_t, 3> places_ = {};
  std::vector<uint16_t> inputs_, gradients_, y_, dy_;
  std::vector<float> lse_, mask_;
  std::vector<std::byte> workspace_;
};

TEST_P(FusedAttentionGraphTest, ForwardIsAttention) {
  Forward();
  ForEachQuery([&](int64_t b, int64_t h, int64_t t) {
    double lse = 0;
    const std::vector<double> p = Probabilities(b, h, t, lse);
    EXPECT_NEAR(lse_[(b * s_.heads + h) * s_.queries + t], lse, 1e-5);
    for (int64_t d = 0; d < s_.head_values; ++d) {
      double y = 0;
      for (size_t k = 0; k < p.size(); ++k) {
        y += p[k] * FromBf16(V(inputs_).At(b, h, static_cast<int64_t>(k), d));
      }
      ASSERT_NEAR(FromBf16(Y(y_).At(b, h, t, d)), y, kTolerance) << b << " " << h << " " << t;
    }
  });
}

TEST_P(FusedAttentionGraphTest, BackwardIsItsDerivative) {
  Forward();
  Backward();
  std::vector<double> sums(gradients_.size());
  const auto add = [&](const Rows& rows, const Index& at, double value) {
    sums[&rows.At(at[0], at[1], at[2], at[3]) - gradients_.data()] += value;
  };
  ForEachQuery([&](int64_t b, int64_t h, int64_t t) {
    double lse = 0;
    const std::vector<double> p = Probabilities(b, h, t, lse);
    std::vector<double> dp(p.size());
    double mean = 0;
    for (size_t k = 0; k < p.size(); ++k) {
      const auto key = static_cast<int64_t>(k);
      for (int64_t d = 0; d < s_.head_values; ++d) {
        const double dy = FromBf16(Y(dy_).At(b, h, t, d));
        dp[k] += dy * FromBf16(V(inputs_).At(b, h, key, d));
        add(V(gradients_), {b, h, key, d}, p[k] * dy);
      }
      mean += p[k] * dp[k];
    }
    for (size_t k = 0; k < p.size(); ++k) {
      const auto key = static_cast<int64_t>(k);
      const double ds = p[k] * (dp[k] - mean) * s_.scale;
      for (int64_t c = 0; c < s_.head_channels; ++c) {
        add(Q(gradients_), {b, h, t, c}, ds * FromBf16(K(inputs_).At(b, h, key, c)));
        add(K(gradients_), {b, h, key, c}, ds * FromBf16(Q(inputs_).At(b, h, t, c)));
      }
    }
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_NEAR(FromBf16(gradients_[i]), sums[i], kTolerance) << "element " << i;
  }
}

AttentionShape Self(bool causal) {
  return {.batch = 2,
          .queries = 7,
          .keys = 7,
          .heads = 3,
          .head_channels = 8,
          .head_values = 8,
          .q_row = 72,
          .k_row = 72,
          .v_row = 72,
          .causal = causal,
          .scale = 0.3f,
          .type = Type::kBf16};
}

AttentionShape Cross() {
  return {.batch = 2,
          .queries = 5,
          .keys = 9,
          .heads = 2,
          .head_channels = 8,
          .head_values = 16,
          .q_row = 16,
          .k_row = 16,
          .v_row = 32,
          .causal = false,
          .scale = 0.4f,
          .type = Type::kBf16};
}

INSTANTIATE_TEST_SUITE_P(Shapes, FusedAttentionGraphTest,
                         testing::Values(Case{Self(true), true}, Case{Self(true), false},
                                         Case{Self(false), true}, Case{Cross(), true},
                                         Case{Cross(), false}, Case{Self(false), true, {2, 1, 1}},
                                         Case{Self(true), false, {1, 3, 7}},
                                         Case{Cross(), true, {2, 1, 5}}));

}  // namespace
}  // namespace muster::kernels::cuda
