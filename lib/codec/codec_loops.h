// Inner loops of the codecs, compiled once per instruction set (bazel/simd.bzl).
#pragma once

#include <cstdint>

namespace muster::kernels {

// The sums of one block of kOneBit. The sign bit decides: -0 is negative.
struct SignSums {
  float positive;
  float negative;
  int64_t negatives;
};

// A magnitude is a float's bits without the sign. It orders like the absolute value, with infinity
// and then NaN above all numbers.
struct CodecLoops {
  // residual += gradient. Returns the largest magnitude of the sums.
  uint32_t (*accumulate)(float* residual, const float* gradient, int64_t n);

  // codes = x * inverse, rounded to nearest, ties to even. Then x -= scale * codes. Requires: |x *
  // inverse| <= 127.
  void (*quantise)(int8_t* codes, float* x, float inverse, float scale, int64_t n);
  // y = scale * codes. Returns whether all codes are at least -127.
  bool (*dequantise)(float* y, const int8_t* codes, float scale, int64_t n);

  SignSums (*sum_signs)(const float* x, int64_t n);
  // Bit i % 8 of bits[i / 8] = the sign bit of x[i]; the last byte is padded with zeros. Then x[i]
  // -= the mean of its sign.
  void (*pack_signs)(uint8_t* bits, float* x, float positive, float negative, int64_t n);
  void (*unpack_signs)(float* y, const uint8_t* bits, float positive, float negative, int64_t n);

  // Collects magnitudes of at least `floor`, in order, up to `capacity`. Returns how many there
  // are, or any number above `capacity` if they do not fit.
  int64_t (*collect_magnitudes)(uint32_t* magnitudes, const float* x, uint32_t floor,
                                int64_t capacity, int64_t n);
  // Collects the ascending indices of all elements with a magnitude above `threshold`, and of the
  // first `ties` that equal it. Returns the number of indices.
  int64_t (*select_indices)(uint32_t* indices, const float* x, uint32_t threshold, int64_t ties,
                            int64_t n);

  // Returns the sum of a b. Partial sums in float are added in double.
  double (*dot)(const float* a, const float* b, int64_t n);
  // y += factor x
  void (*add_scaled)(float* y, const float* x, float factor, int64_t n);
  // products[c] = sum over j in [0, n) of x[j] * factors[c * stride + j], c in [0, rank).
  void (*multiply)(float* products, const float* x, const float* factors, int64_t stride, int rank,
                   int64_t n);
  // factors[c * stride + j] += weights[c] * x[j]
  void (*add_outer)(float* factors, const float* x, const float* weights, int64_t stride, int rank,
                    int64_t n);
  // y[j] = the sum over c of weights[c] * factors[c * stride + j]. subtract_combined subtracts
  // exactly the same bits.
  void (*combine)(float* y, const float* weights, const float* factors, int64_t stride, int rank,
                  int64_t n);
  void (*subtract_combined)(float* y, const float* weights, const float* factors, int64_t stride,
                            int rank, int64_t n);
};

namespace baseline {
extern const CodecLoops kCodecLoops;
}
namespace avx2 {
extern const CodecLoops kCodecLoops;
}
namespace avx512 {
extern const CodecLoops kCodecLoops;
}

}  // namespace muster::kernels
