#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/recurrent.h"

namespace muster::kernels::cuda {
namespace {

__device__ float Sigmoid(float x) { return 1 / (1 + expf(-x)); }

// The input of gate `gate` of unit j of sample b: the sum of products and biases.
template <typename T>
struct Gates {
  const float* inputs;
  const float* hidden;
  const T* bias;
  int64_t gates;

  __device__ float Input(const RecurrentStep& s, int64_t b, int64_t gate, int64_t j) const {
    const int64_t column = gate * s.hidden + j;
    return inputs[(b * s.time + s.step) * gates * s.hidden + column] + ToFloat(bias[column]);
  }
  __device__ float Hidden(const RecurrentStep& s, int64_t b, int64_t gate, int64_t j) const {
    const int64_t row = gates * s.hidden, column = gate * s.hidden + j;
    return (hidden == nullptr ? 0 : hidden[b * row + column]) + ToFloat(bias[row + column]);
  }
  __device__ float Both(const RecurrentStep& s, int64_t b, int64_t gate, int64_t j) const {
    return Input(s, b, gate, j) + Hidden(s, b, gate, j);
  }
};

constexpr int kParts = 5;  // values per unit in a step's state

__device__ int64_t StateIndex(const RecurrentStep& s, int64_t step, int64_t b, int64_t part,
                              int64_t j) {
  return ((step * s.batch + b) * kParts + part) * s.hidden + j;
}

__device__ int64_t HiddenIndex(const RecurrentStep& s, int64_t step, int64_t b, int64_t j) {
  return (b * s.time + step) * s.y_row + s.column + j;
}

// The last value of the previous step (LSTM: c; GRU: h), or the initial one.
template <typename T>
__device__ float Before(const RecurrentStep& s, const float* state, const T* first, int64_t b,
                        int64_t j) {
  if (s.before >= 0) return state[StateIndex(s, s.before, b, kParts - 1, j)];
  return first == nullptr ? 0 : ToFloat(first[b * s.hidden + j]);
}

template <typename T>
__global__ void Lstm(T* y, T* h, T* c, float* state, Gates<T> gates, const T* c0, RecurrentStep s) {
  for (int64_t i = ThreadIndex(); i < s.batch * s.hidden; i += ThreadCount()) {
    const int64_t b = i / s.hidden, j = i % s.hidden;
    const float in = Sigmoid(gates.Both(s, b, 0, j));
    const float forget = Sigmoid(gates.Both(s, b, 1, j));
    const float candidate = tanhf(gates.Both(s, b, 2, j));
    const float out = Sigmoid(gates.Both(s, b, 3, j));
    const float cell = forget * Before(s, state, c0, b, j) + in * candidate;
    const float value = out * tanhf(cell);
    const float kept[kParts] = {in, forget, candidate, out, cell};
    for (int part = 0; part < kParts; ++part) state[StateIndex(s, s.step, b, part, j)] = kept[part];
    y[HiddenIndex(s, s.step, b, j)] = FromFloat<T>(value);
    if (h != nullptr) h[i] = FromFloat<T>(value);
    if (c != nullptr) c[i] = FromFloat<T>(cell);
  }
}

template <typename T>
__global__ void LstmGrad(T* dgates, float* carried_cell, const float* carried, const T* dy,
                         const T* dh, const T* dc, const float* state, const T* c0,
                         RecurrentStep s) {
  for (int64_t i = ThreadIndex(); i < s.batch * s.hidden; i += ThreadCount()) {
    const int64_t b = i / s.hidden, j = i % s.hidden;
    float kept[kParts];
    for (int part = 0; part < kParts; ++part) kept[part] = state[StateIndex(s, s.step, b, part, j)];
    const auto [in, forget, candidate, out, cell] = kept;
    float d_value = carried == nullptr ? 0 : carried[i];
    if (dy != nullptr) d_value += ToFloat(dy[HiddenIndex(s, s.step, b, j)]);
    if (dh != nullptr) d_value += ToFloat(dh[i]);
    const float squashed = tanhf(cell);
    float d_cell = carried_cell[i] + d_value * out * (1 - squashed * squashed);
    if (dc != nullptr) d_cell += ToFloat(dc[i]);
    const float of_gates[4] = {
        d_cell * candidate * in * (1 - in),
        d_cell * Before(s, state, c0, b, j) * forget * (1 - forget),
        d_cell * in * (1 - candidate * candidate),
        d_value * squashed * out * (1 - out),
    };
    T* to = dgates + (b * s.time + s.step) * 4 * s.hidden + j;
    for (int gate = 0; gate < 4; ++gate) to[gate * s.hidden] = FromFloat<T>(of_gates[gate]);
    carried_cell[i] = d_cell * forget;
  }
}

template <typename T>
__global__ void Gru(T* y, T* h, float* state, Gates<T> gates, const T* h0, RecurrentStep s) {
  for (int64_t i = ThreadIndex(); i < s.batch * s.hidden; i += ThreadCount()) {
    const int64_t b = i / s.hidden, j = i % s.hidden;
    const float reset = Sigmoid(gates.Both(s, b, 0, j));
    const float update = Sigmoid(gates.Both(s, b, 1, j));
    const float hidden = gates.Hidden(s, b, 2, j);
    const float candidate = tanhf(gates.Input(s, b, 2, j) + reset * hidden);
    const float value = (1 - update) * candidate + update * Before(s, state, h0, b, j);
    const float kept[kParts] = {reset, update, candidate, hidden, value};
    for (int part = 0; part < kParts; ++part) state[StateIndex(s, s.step, b, part, j)] = kept[part];
    y[HiddenIndex(s, s.step, b, j)] = FromFloat<T>(value);
    if (h != nullptr) h[i] = FromFloat<T>(value);
  }
}

template <typename T>
__global__ void GruGrad(T* dgates, T* dhidden, float* carried_through, const float* carried,
                        const T* dy, const T* dh, const float* state, const T* h0,
                        RecurrentStep s) {
  for (int64_t i = ThreadIndex(); i < s.batch * s.hidden; i += ThreadCount()) {
    const int64_t b = i / s.hidden, j = i % s.hidden;
    float kept[kParts];
    for (int part = 0; part < kParts; ++part) kept[part] = state[StateIndex(s, s.step, b, part, j)];
    const auto [reset, update, candidate, hidden, value] = kept;
    float d_value = carried_through[i] + (carried == nullptr ? 0 : carried[i]);
    if (dy != nullptr) d_value += ToFloat(dy[HiddenIndex(s, s.step, b, j)]);
    if (dh != nullptr) d_value += ToFloat(dh[i]);
    const float before = Before(s, state, h0, b, j);
    const float d_candidate = d_value * (1 - update) * (1 - candidate * candidate);
    const float d_update = d_value * (before - candidate) * update * (1 - update);
    const float d_reset = d_candidate * hidden * reset * (1 - reset);
    const int64_t at = (b * s.time + s.step) * 3 * s.hidden + j;
    dgates[at] = dhidden[at] = FromFloat<T>(d_reset);
    dgates[at + s.hidden] = dhidden[at + s.hidden] = FromFloat<T>(d_update);
    dgates[at + 2 * s.hidden] = FromFloat<T>(d_candidate);
    dhidden[at + 2 * s.hidden] = FromFloat<T>(d_candidate * reset);
    carried_through[i] = d_value * update;
  }
}

template <typename T>
__global__ void Shift(T* before, const T* y, const T* h0, RecurrentStep s, int64_t first,
                      int64_t direction) {
  for (int64_t i = ThreadIndex(); i < s.batch * s.time * s.hidden; i += ThreadCount()) {
    const int64_t j = i % s.hidden, b = i / s.hidden / s.time;
    const int64_t step = i / s.hidden % s.time;
    if (step != first) {
      before[i] = y[HiddenIndex(s, step - direction, b, j)];
    } else {
      before[i] = h0 == nullptr ? FromFloat<T>(0) : h0[b * s.hidden + j];
    }
  }
}

template <typename T>
__global__ void Add(T* to, const float* a, const float* b, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += ThreadCount()) {
    to[i] = FromFloat<T>((a == nullptr ? 0 : a[i]) + (b == nullptr ? 0 : b[i]));
  }
}

}  // namespace

cudaError_t LstmStep(void* y, void* h, void* c, float* state, const float* inputs,
                     const float* hidden, const void* bias, const void* c0,
                     const RecurrentStep& step, cudaStream_t stream) {
  return ForFloating(step.type, [&](auto one) {
    using T = decltype(one);
    const Gates<T> gates = {inputs, hidden, static_cast<const T*>(bias), 4};
    return Launch(Lstm<T>, Strided(step.batch * step.hidden), kThreads, 0, stream,
                  static_cast<T*>(y), static_cast<T*>(h), static_cast<T*>(c), state, gates,
                  static_cast<const T*>(c0), step);
  });
}

cudaError_t GruStep(void* y, void* h, float* state, const float* inputs, const float* hidden,
                    const void* bias, const void* h0, const RecurrentStep& step,
                    cudaStream_t stream) {
  return ForFloating(step.type, [&](auto one) {
    using T = decltype(one);
    const Gates<T> gates = {inputs, hidden, static_cast<const T*>(bias), 3};
    return Launch(Gru<T>, Strided(step.batch * step.hidden), kThreads, 0, stream,
                  static_cast<T*>(y), static_cast<T*>(h), state, gates, static_cast<const T*>(h0),
                  step);
  });
}

cudaError_t LstmStepGrad(void* dgates, float* carried_through, const float* carried, const void* dy,
                         const void* dh, const void* dc, const float* state, const void* c0,
                         const RecurrentStep& step, cudaStream_t stream) {
  return ForFloating(step.type, [&](auto one) {
    using T = decltype(one);
    return Launch(LstmGrad<T>, Strided(step.batch * step.hidden), kThreads, 0, stream,
                  static_cast<T*>(dgates), carried_through, carried, static_cast<const T*>(dy),
                  static_cast<const T*>(dh), static_cast<const T*>(dc), state,
                  static_cast<const T*>(c0), step);
  });
}

cudaError_t GruStepGrad(void* dgates, void* dhidden, float* carried_through, const float* carried,
                        const void* dy, const void* dh, const float* state, const void* h0,
                        const RecurrentStep& step, cudaStream_t stream) {
  return ForFloating(step.type, [&](auto one) {
    using T = decltype(one);
    return Launch(GruGrad<T>, Strided(step.batch * step.hidden), kThreads, 0, stream,
                  static_cast<T*>(dgates), static_cast<T*>(dhidden), carried_through, carried,
                  static_cast<const T*>(dy), static_cast<const T*>(dh), state,
                  static_cast<const T*>(h0), step);
  });
}

cudaError_t ShiftHidden(void* before, const void* y, const void* h0, const RecurrentStep& shape,
                        int64_t first, int64_t direction, cudaStream_t stream) {
  return ForFloating(shape.type, [&](auto one) {
    using T = decltype(one);
    return Launch(Shift<T>, Strided(shape.batch * shape.time * shape.hidden), kThreads, 0, stream,
                  static_cast<T*>(before), static_cast<const T*>(y), static_cast<const T*>(h0),
                  shape, first, direction);
  });
}

cudaError_t AddCarried(void* to, const float* a, const float* b, Type type, int64_t n,
                       cudaStream_t stream) {
  return ForFloating(type, [&](auto one) {
    using T = decltype(one);
    return Launch(Add<T>, Strided(n), kThreads, 0, stream, static_cast<T*>(to), a, b, n);
  });
}

}  // namespace muster::kernels::cuda
