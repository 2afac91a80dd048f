// Inner loops of Resampler, compiled once per instruction set (bazel/simd.bzl).
#pragma once

#include <cstdint>

namespace muster::kernels {

// The pixels that each output reads, and their weights in units of 2^-22. Output i reads counts[i]
// inputs from starts[i] on.
struct ResampleTaps {
  const int32_t* starts;
  const int32_t* counts;
  const int32_t* weights;  // [outputs, stride]
  int64_t stride;
};

// Taps for interleaved RGB and products of 16 bits. A weight is high * 2^11 + low. All outputs
// read the same number of pairs of inputs. `outputs` is a multiple of 8.
struct RgbTaps {
  static constexpr int kBlock = 8;
  const int32_t* starts;  // [outputs]
  // [outputs / 8, 4, pairs, 2, 2, 8]: for outputs k and k + 4 of a block and each pair of inputs,
  // the high and then the low parts. An output has the pair for red, green, blue and a zero.
  const int16_t* parts;
  int64_t pairs;
};

struct ResampleLoops {
  // Resamples a row of interleaved RGB. Channel c of output i becomes to[c * plane + i]. Reads up
  // to 16 bytes behind the last input. `n` is a multiple of 8.
  void (*horizontal_rgb)(uint8_t* to, int64_t plane, const uint8_t* from, const RgbTaps& taps,
                         int64_t n);
  // Resamples a row of one channel.
  void (*horizontal_plane)(uint8_t* to, const uint8_t* from, const ResampleTaps& taps, int64_t n);
  // to[i] = the sum over t in [0, count) of from[t * stride + i] * weights[t]. Reads up to 32 bytes
  // behind a row.
  void (*vertical)(uint8_t* to, const uint8_t* from, int64_t stride, const int32_t* weights,
                   int32_t count, int64_t n);
};

namespace baseline {
extern const ResampleLoops kResampleLoops;
}
namespace avx2 {
extern const ResampleLoops kResampleLoops;
}
namespace avx512 {
extern const ResampleLoops kResampleLoops;
}

}  // namespace muster::kernels
