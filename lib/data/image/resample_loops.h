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
  // The weights as two 16-bit parts, high * 2^11 + low, for each 4 inputs, in the order of
  // ResampleLoops::horizontal_rgb. [outputs, ceil(stride / 4), 2, 16]; nullptr for other loops.
  const int16_t* parts;
};

struct ResampleLoops {
  // Resamples a row of interleaved RGB. Channel c of output i becomes to[c * plane + i]. Reads up
  // to 16 bytes behind the last input. Writes whole groups of 4 outputs.
  void (*horizontal_rgb)(uint8_t* to, int64_t plane, const uint8_t* from, const ResampleTaps& taps,
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
