#include "kernels/cpu/plane_loops.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace muster::kernels::KERNELS_SIMD {
namespace {

struct Whole {
  Vec Load(const float* p) const { return KERNELS_SIMD::Load(p); }
  void Store(float* p, Vec v) const { KERNELS_SIMD::Store(p, v); }
  Vec Keep(Vec v) const { return v; }
};

// Accesses the first n lanes.
struct Part {
  int64_t n;

  Vec Load(const float* p) const { return LoadFirst(p, n); }
  void Store(float* p, Vec v) const { StoreFirst(p, v, n); }
  Vec Keep(Vec v) const {
    float lanes[kLanes];
    KERNELS_SIMD::Store(lanes, v);
    return LoadFirst(lanes, n);
  }
};

// Vectors at first, first + step...: each has kLanes channels, or kLanes pixels of one channel.
template <typename Access>
struct Run {
  Access access;
  int64_t lane;
  int64_t first;
  int64_t step;
  int64_t count;
  bool is_one_channel;

  Vec Constant(const float* p) const {
    return is_one_channel ? Splat(p[lane]) : access.Load(p + lane);
  }

  template <typename F>
  void ForEach(F f) const {
    int64_t at = first;
    for (int64_t i = 0; i < count; ++i, at += step) f(at);
  }

  // Returns the sum of term(position).
  template <typename F>
  auto Sum(F term) const {
    using Term = decltype(term(first));
    Term total{};
    for (int64_t i = 0; i < count;) {
      const int64_t end = i + 256 < count ? i + 256 : count;
      Term a{}, b{}, c{}, d{};
      for (; i + 4 <= end; i += 4) {
        const int64_t at = first + i * step;
        a += term(at);
        b += term(at + step);
        c += term(at + 2 * step);
        d += term(at + 3 * step);
      }
      for (; i < end; ++i) a += term(first + i * step);
      a += b;
      c += d;
      a += c;
      total += a;
    }
    return total;
  }

  void AddTo(float* sum, Vec total) const {
    if (is_one_channel) {
      sum[lane] += SumLanes(access.Keep(total));
    } else {
      access.Store(sum + lane, access.Load(sum + lane) + total);
    }
  }
};

template <typename F>
inline void ForEachRun(Plane plane, F f) {
  if (plane.stride == 1) {
    const int64_t whole = plane.pixels / kLanes, rest = plane.pixels % kLanes;
    if (whole > 0) f(Run<Whole>{{}, 0, 0, kLanes, whole, true});
    if (rest > 0) f(Run<Part>{{rest}, 0, whole * kLanes, 0, 1, true});
    return;
  }
  int64_t lane = 0;
  for (; lane + kLanes <= plane.lanes; lane += kLanes) {
    f(Run<Whole>{{}, lane, lane, plane.stride, plane.pixels, false});
  }
  if (lane < plane.lanes) {
    f(Run<Part>{{plane.lanes - lane}, lane, lane, plane.stride, plane.pixels, false});
  }
}

void Clear(float* sum, Plane plane) {
  for (int64_t i = 0; i < plane.lanes; ++i) sum[i] = 0;
}

void Sum(float* sum, const float* x, Plane plane) {
  Clear(sum, plane);
  ForEachRun(plane, [=](auto run) {
    run.AddTo(sum, run.Sum([=](int64_t at) { return run.access.Load(x + at); }));
  });
}

void Squares(float* sum, const float* x, const float* center, Plane plane) {
  Clear(sum, plane);
  ForEachRun(plane, [=](auto run) {
    const Vec c = run.Constant(center);
    run.AddTo(sum, run.Sum([=](int64_t at) {
      const Vec d = run.access.Load(x + at) - c;
      return d * d;
    }));
  });
}

enum class After { kNothing, kRelu };

template <After kAfter>
inline Vec Finish(Vec v) {
  return kAfter == After::kRelu ? (v < 0.0f ? Vec{} : v) : v;
}

// Returns dy after the activation: 0 where Relu returned 0.
template <After kAfter>
inline Vec Through(Vec dy, Vec y) {
  return kAfter == After::kRelu ? (y > 0.0f ? dy : Vec{}) : dy;
}

template <After kAfter>
void Normalise(float* y, const float* x, PlaneLoops::Line line, Plane plane) {
  ForEachRun(plane, [=](auto run) {
    const Vec center = run.Constant(line.center), slope = run.Constant(line.slope),
              offset = run.Constant(line.offset);
    run.ForEach([=](int64_t at) {
      const Vec v = (run.access.Load(x + at) - center) * slope + offset;
      run.access.Store(y + at, Finish<kAfter>(v));
    });
  });
}

struct Two {
  Vec first, second;

  void operator+=(const Two& other) {
    first += other.first;
    second += other.second;
  }
};

template <After kAfter>
void GradSums(float* sum, float* dot, const float* dy, const float* x, PlaneLoops::Line line,
              Plane plane) {
  Clear(sum, plane);
  Clear(dot, plane);
  ForEachRun(plane, [=](auto run) {
    const Vec center = run.Constant(line.center), slope = run.Constant(line.slope),
              offset = run.Constant(line.offset);
    const Two total = run.Sum([=](int64_t at) {
      const Vec d = run.access.Load(x + at) - center;
      const Vec g = Through<kAfter>(run.access.Load(dy + at), d * slope + offset);
      return Two{g, g * d};
    });
    run.AddTo(sum, total.first);
    run.AddTo(dot, total.second);
  });
}

template <After kAfter>
void GradInput(float* dx, const float* dy, const float* x, PlaneLoops::Line line,
               PlaneLoops::Correction correction, Plane plane) {
  ForEachRun(plane, [=](auto run) {
    const Vec center = run.Constant(line.center), slope = run.Constant(line.slope),
              offset = run.Constant(line.offset), mean = run.Constant(correction.mean),
              tilt = run.Constant(correction.tilt);
    run.ForEach([=](int64_t at) {
      const Vec d = run.access.Load(x + at) - center;
      const Vec g = Through<kAfter>(run.access.Load(dy + at), d * slope + offset);
      run.access.Store(dx + at, slope * (g - mean - d * tilt));
    });
  });
}

void Fill(float* y, const float* value, Plane plane) {
  ForEachRun(plane, [=](auto run) {
    const Vec v = run.Constant(value);
    run.ForEach([=](int64_t at) { run.access.Store(y + at, v); });
  });
}

}  // namespace

extern const PlaneLoops kPlaneLoops;
const PlaneLoops kPlaneLoops = {
    .sum = Sum,
    .squares = Squares,
    .normalise = Normalise<After::kNothing>,
    .normalise_relu = Normalise<After::kRelu>,
    .grad_sums = GradSums<After::kNothing>,
    .grad_sums_relu = GradSums<After::kRelu>,
    .grad_input = GradInput<After::kNothing>,
    .grad_input_relu = GradInput<After::kRelu>,
    .fill = Fill,
};

}  // namespace muster::kernels::KERNELS_SIMD
