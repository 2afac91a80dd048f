// Loops over a plane of an image (kernels/cpu/image_order.h), once per instruction set.
#pragma once

#include <cstdint>

namespace muster::kernels {

// The layout of a plane: value (p, lane) is at p * stride + lane. Every constant and sum below is
// f32[lanes], one per channel of the plane.
struct Plane {
  int64_t pixels;
  int64_t stride;
  int64_t lanes;  // at most stride
};

// Sums over the pixels add up blocks of floats, in an order that depends only on the plane and the
// instruction set.
struct PlaneLoops {
  void (*sum)(float* sum, const float* x, Plane plane);
  // Sums (x - center)².
  void (*squares)(float* sum, const float* x, const float* center, Plane plane);

  struct Line {
    const float* center;
    const float* slope;
    const float* offset;
  };
  // y = (x - center) slope + offset. y may be x.
  void (*normalise)(float* y, const float* x, Line line, Plane plane);
  // y = max((x - center) slope + offset, 0). NaN stays NaN.
  void (*normalise_relu)(float* y, const float* x, Line line, Plane plane);

  // sum = sum of dy; dot = sum of dy (x - center). The relu version uses dy only where
  // normalise_relu returned more than 0.
  void (*grad_sums)(float* sum, float* dot, const float* dy, const float* x, Line line,
                    Plane plane);
  void (*grad_sums_relu)(float* sum, float* dot, const float* dy, const float* x, Line line,
                         Plane plane);
  // dx = slope (dy - mean - (x - center) tilt), with dy as above. dx may be dy or x.
  struct Correction {
    const float* mean;
    const float* tilt;
  };
  void (*grad_input)(float* dx, const float* dy, const float* x, Line line, Correction correction,
                     Plane plane);
  void (*grad_input_relu)(float* dx, const float* dy, const float* x, Line line,
                          Correction correction, Plane plane);

  // y = value at every pixel.
  void (*fill)(float* y, const float* value, Plane plane);
};

namespace baseline {
extern const PlaneLoops kPlaneLoops;
}
namespace avx2 {
extern const PlaneLoops kPlaneLoops;
}
namespace avx512 {
extern const PlaneLoops kPlaneLoops;
}

}  // namespace muster::kernels
