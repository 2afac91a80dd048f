#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "lib/data/image/augment.h"

namespace muster {
namespace {

constexpr double kDegree = std::numbers::pi / 180;

// A number in units of 2^-16, as Pillow computes positions of nearest pixels.
int64_t Fixed(double value) { return static_cast<int64_t>(std::floor(value * 65536.0 + 0.5)); }

void TransformNearest(uint8_t* to, const uint8_t* from, int width, int height,
                      const AffineMatrix& m) {
  int64_t row_x = Fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
  int64_t row_y = Fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  const int64_t x_by_x = Fixed(m[0]), y_by_x = Fixed(m[3]);
  for (int y = 0; y < height; ++y) {
    int64_t at_x = row_x, at_y = row_y;
    for (int x = 0; x < width; ++x) {
      const int64_t column = at_x >> 16, row = at_y >> 16;
      const bool is_inside = column >= 0 && column < width && row >= 0 && row < height;
      *to++ = is_inside ? from[row * width + column] : 0;
      at_x += x_by_x;
      at_y += y_by_x;
    }
    row_x += Fixed(m[1]);
    row_y += Fixed(m[4]);
  }
}

double Cubic(double a, double b, double c, double d, double at) {
  const double p2 = -a + c, p3 = 2 * (a - b) + c - d, p4 = -a + b - c + d;
  return b + at * (p2 + at * (p3 + at * p4));
}

// Returns the value between the pixels of row `y`, and of column `x` and its neighbours.
class Interpolator {
 public:
  Interpolator(const uint8_t* from, int width, int height, ResampleFilter filter)
      : from_(from), width_(width), height_(height), filter_(filter) {}

  uint8_t At(double x, double y) const {
    if (x < 0 || x >= width_ || y < 0 || y >= height_) return 0;
    x -= 0.5;
    y -= 0.5;
    const int column = static_cast<int>(std::floor(x)), row = static_cast<int>(std::floor(y));
    const double dx = x - column, dy = y - row;
    if (filter_ == ResampleFilter::kBilinear) {
      const double above = Linear(std::max(row, 0), column, dx);
      const double below = row + 1 < height_ ? Linear(row + 1, column, dx) : above;
      return static_cast<uint8_t>(above + (below - above) * dy);
    }
    // A row outside has the value of the one before it.
    double values[4];
    values[0] = CubicIn(std::clamp(row - 1, 0, height_ - 1), column, dx);
    for (int i = 1; i < 4; ++i) {
      const int at = row - 1 + i;
      values[i] = at >= 0 && at < height_ ? CubicIn(at, column, dx) : values[i - 1];
    }
    const double value = Cubic(values[0], values[1], values[2], values[3], dy);
    return value <= 0 ? 0 : value >= 255 ? 255 : static_cast<uint8_t>(value);
  }

 private:
  double Pixel(int row, int column) const {
    return from_[int64_t{row} * width_ + std::clamp(column, 0, width_ - 1)];
  }
  double Linear(int row, int column, double dx) const {
    const double left = Pixel(row, column), right = Pixel(row, column + 1);
    return left + (right - left) * dx;
  }
  double CubicIn(int row, int column, double dx) const {
    return Cubic(Pixel(row, column - 1), Pixel(row, column), Pixel(row, column + 1),
                 Pixel(row, column + 2), dx);
  }

  const uint8_t* const from_;
  const int width_;
  const int height_;
  const ResampleFilter filter_;
};

}  // namespace

PixelView ViewOf(const Planes& planes) {
  return {.data = planes.bytes.data(),
          .row = planes.width,
          .pixel = 1,
          .channel = planes.pixels(),
          .channels = planes.channels};
}

AffineMatrix ShearX(double slope) {
  return {1, std::tan(std::atan(slope) / kDegree * kDegree), 0, 0, 1, 0};
}

AffineMatrix ShearY(double slope) {
  return {1, 0, 0, std::tan(std::atan(slope) / kDegree * kDegree), 1, 0};
}

AffineMatrix Translate(double x, double y) { return {1, 0, -x, 0, 1, -y}; }

AffineMatrix Rotate(double degrees, int width, int height) {
  const double angle = -degrees * kDegree;
  auto rounded = [](double value) { return std::nearbyint(value * 1e15) / 1e15; };
  AffineMatrix m = {rounded(std::cos(angle)),  rounded(std::sin(angle)), 0,
                    rounded(-std::sin(angle)), rounded(std::cos(angle)), 0};
  const double x = width / 2.0, y = height / 2.0;
  m[2] = m[0] * -x + m[1] * -y + x;
  m[5] = m[3] * -x + m[4] * -y + y;
  return m;
}

void Transform(Planes& image, const AffineMatrix& m, ResampleFilter filter, Planes& scratch) {
  const int width = image.width, height = image.height;
  scratch.Reserve(width, height, image.channels);
  for (int c = 0; c < image.channels; ++c) {
    uint8_t* to = scratch.plane(c);
    if (filter == ResampleFilter::kNearest) {
      TransformNearest(to, image.plane(c), width, height, m);
      continue;
    }
    const Interpolator interpolator(image.plane(c), width, height, filter);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const double u = x + 0.5, v = y + 0.5;
        *to++ = interpolator.At(m[0] * u + m[1] * v + m[2], m[3] * u + m[4] * v + m[5]);
      }
    }
  }
  std::swap(image, scratch);
}

void Orient(Planes& image, int orientation, Planes& scratch) {
  if (orientation == 1) return;
  const bool is_transposed = orientation >= 5;
  const bool is_mirrored = orientation == 2 || orientation == 3 || orientation == 7 ||
                           orientation == 8;  // columns of the file, from the right
  const bool is_upside_down = orientation == 3 || orientation == 4 || orientation == 6 ||
                              orientation == 7;  // rows of the file, from below
  const int width = is_transposed ? image.height : image.width;
  const int height = is_transposed ? image.width : image.height;
  scratch.Reserve(width, height, image.channels);
  for (int c = 0; c < image.channels; ++c) {
    const uint8_t* const from = image.plane(c);
    uint8_t* to = scratch.plane(c);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        int column = is_transposed ? y : x, row = is_transposed ? x : y;
        if (is_mirrored) column = image.width - 1 - column;
        if (is_upside_down) row = image.height - 1 - row;
        *to++ = from[int64_t{row} * image.width + column];
      }
    }
  }
  std::swap(image, scratch);
}

}  // namespace muster
