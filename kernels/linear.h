// Affine maps and their derivatives: R rows, I inputs, O outputs. Row-major f32; no buffer aliases
// another. Results repeat to the bit for the same number of threads (kernels/threads.h), and may
// differ in the last bits for another.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct LinearShape {
  int64_t rows;     // R
  int64_t inputs;   // I
  int64_t outputs;  // O
};

// y[R, O] = x[R, I] w[O, I]ᵀ + bias[O]; a null bias is zero. 2 R I O operations: compute-bound.
void Linear(float* y, const float* x, const float* w, const float* bias, LinearShape shape);

// y = relu(x wᵀ + bias).
void LinearRelu(float* y, const float* x, const float* w, const float* bias, LinearShape shape);

// y = gelu(preactivation), preactivation[R, O] = x wᵀ + bias.
enum class GeluKind { kTanh, kExact };
void LinearGelu(float* y, float* preactivation, const float* x, const float* w, const float* bias,
                LinearShape shape, GeluKind kind);

// dx[R, I] = dy[R, O] w[O, I].
void LinearGradInput(float* dx, const float* dy, const float* w, LinearShape shape);

// dw[O, I] = dy[R, O]ᵀ x[R, I].
void LinearGradWeight(float* dw, const float* dy, const float* x, LinearShape shape);

// db[O] = sum over rows of dy[R, O]. Reads R O floats: bandwidth-bound.
void LinearGradBias(float* db, const float* dy, LinearShape shape);

}  // namespace muster::kernels
