// The loops of lstm.h and gru.h, once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// One time step of one sample with H hidden units. Each "previous" pointer may be null: zeros.
struct RecurrentLoops {
  // gates[4H]: on entry the products with x and h, on return the gates' values. bias[8H].
  void (*lstm)(float* h, float* c, float* gates, const float* bias, const float* previous_c,
               int64_t hidden);
  // dgates[4H]: derivatives by the gates' inputs. dh: gradient of h. dc: on entry the gradient of
  // c, on return that of the previous c.
  void (*lstm_grad)(float* dgates, float* dc, const float* dh, const float* dy, const float* gates,
                    const float* c, const float* previous_c, int64_t hidden);

  // gates[3H]: on entry the products with x, on return the gates' values. products[3H]: the
  // products with the previous h. candidate[H]: the value that the reset gate multiplies. bias[6H].
  void (*gru)(float* h, float* gates, float* candidate, const float* products, const float* bias,
              const float* previous_h, int64_t hidden);
  // dgates[3H] and dproducts[3H]: derivatives by the products with x and with h. dh: on entry the
  // gradient of h without dy. On return it is the gradient of the previous h, except the part
  // through the products.
  void (*gru_grad)(float* dgates, float* dproducts, float* dh, const float* dy, const float* gates,
                   const float* candidate, const float* previous_h, int64_t hidden);
};

namespace baseline {
extern const RecurrentLoops kRecurrentLoops;
}
namespace avx2 {
extern const RecurrentLoops kRecurrentLoops;
}
namespace avx512 {
extern const RecurrentLoops kRecurrentLoops;
}

}  // namespace muster::kernels
