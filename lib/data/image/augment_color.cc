#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "lib/data/image/augment.h"

namespace muster {
namespace {

using ByteTable = std::array<uint8_t, 256>;

uint8_t Clipped(double value) {
  return value <= 0 ? 0 : value >= 255 ? 255 : static_cast<uint8_t>(value);
}

// Returns from + factor * (to - from) as Pillow's blend() does, in float and rounded down.
uint8_t Blended(int from, int to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return value <= 0 ? 0 : value >= 255 ? 255 : static_cast<uint8_t>(value);
}

void Apply(uint8_t* plane, int64_t pixels, const ByteTable& table) {
  for (int64_t i = 0; i < pixels; ++i) plane[i] = table[plane[i]];
}

template <typename F>
ByteTable TableOf(F f) {
  ByteTable table;
  for (int i = 0; i < 256; ++i) table[i] = f(i);
  return table;
}

std::array<int64_t, 256> HistogramOf(const uint8_t* plane, int64_t pixels) {
  std::array<int64_t, 256> counts = {};
  for (int64_t i = 0; i < pixels; ++i) ++counts[plane[i]];
  return counts;
}

uint8_t LuminanceAt(const Planes& image, int64_t i) {
  if (image.channels == 1) return image.plane(0)[i];
  return Luminance(image.plane(0)[i], image.plane(1)[i], image.plane(2)[i]);
}

struct Hsv {
  uint8_t hue, saturation, value;
};

// Rounds where Pillow does: hue is a float, and its sums are doubles.
Hsv ToHsv(uint8_t red, uint8_t green, uint8_t blue) {
  const uint8_t most = std::max({red, green, blue}), least = std::min({red, green, blue});
  if (most == least) return {0, 0, most};
  const float range = static_cast<float>(most - least);
  const float saturation = range / static_cast<float>(most);
  const float r = static_cast<float>(most - red) / range;
  const float g = static_cast<float>(most - green) / range;
  const float b = static_cast<float>(most - blue) / range;
  float hue;
  if (red == most) {
    hue = b - g;
  } else if (green == most) {
    hue = static_cast<float>(2.0 + r - b);
  } else {
    hue = static_cast<float>(4.0 + g - r);
  }
  hue = static_cast<float>(std::fmod(hue / 6.0 + 1.0, 1.0));
  return {Clipped(static_cast<int>(hue * 255.0)), Clipped(static_cast<int>(saturation * 255.0)),
          most};
}

std::array<uint8_t, 3> ToRgb(const Hsv& hsv) {
  const uint8_t v = hsv.value;
  if (hsv.saturation == 0) return {v, v, v};
  const double sixth = hsv.hue * 6.0 / 255.0;
  const int sector = static_cast<int>(std::floor(sixth));
  const float fraction = static_cast<float>(sixth - sector);
  const float saturation = static_cast<float>(hsv.saturation / 255.0);
  auto scaled = [&](double share) { return Clipped(std::round(v * share)); };
  const uint8_t p = scaled(1.0 - saturation);
  const uint8_t q = scaled(1.0 - saturation * fraction);
  const uint8_t t = scaled(1.0 - saturation * (1.0 - fraction));
  switch (sector % 6) {
    case 0:
      return {v, t, p};
    case 1:
      return {q, v, p};
    case 2:
      return {p, v, t};
    case 3:
      return {p, q, v};
    case 4:
      return {t, p, v};
    default:
      return {v, p, q};
  }
}

// Writes the 3 x 3 mean with a center of 5/13 and neighbours of 1/13. The border stays.
void Smooth(uint8_t* to, const uint8_t* from, int width, int height) {
  std::memcpy(to, from, int64_t{width} * height);
  for (int y = 1; y + 1 < height; ++y) {
    const uint8_t* const row = from + int64_t{y} * width;
    for (int x = 1; x + 1 < width; ++x) {
      int sum = 4 * row[x];
      for (int dy : {-width, 0, width}) sum += row[x + dy - 1] + row[x + dy] + row[x + dy + 1];
      to[int64_t{y} * width + x] = static_cast<uint8_t>((2 * sum + 13) / 26);
    }
  }
}

}  // namespace

void AdjustBrightness(Planes& image, double factor) {
  const ByteTable table =
      TableOf([&](int value) { return Blended(0, value, static_cast<float>(factor)); });
  Apply(image.bytes.data(), image.pixels() * image.channels, table);
}

void AdjustContrast(Planes& image, double factor) {
  int64_t sum = 0;
  for (int64_t i = 0; i < image.pixels(); ++i) sum += LuminanceAt(image, i);
  const int mean =
      static_cast<int>(static_cast<double>(sum) / static_cast<double>(image.pixels()) + 0.5);
  const ByteTable table =
      TableOf([&](int value) { return Blended(mean, value, static_cast<float>(factor)); });
  Apply(image.bytes.data(), image.pixels() * image.channels, table);
}

void AdjustSaturation(Planes& image, double factor) {
  if (image.channels == 1) return;
  uint8_t *red = image.plane(0), *green = image.plane(1), *blue = image.plane(2);
  const float share = static_cast<float>(factor);
  for (int64_t i = 0; i < image.pixels(); ++i) {
    const uint8_t gray = Luminance(red[i], green[i], blue[i]);
    red[i] = Blended(gray, red[i], share);
    green[i] = Blended(gray, green[i], share);
    blue[i] = Blended(gray, blue[i], share);
  }
}

void AdjustSharpness(Planes& image, double factor, Planes& scratch) {
  scratch.Reserve(image.width, image.height, 1);
  uint8_t* const smooth = scratch.plane(0);
  for (int c = 0; c < image.channels; ++c) {
    uint8_t* const plane = image.plane(c);
    Smooth(smooth, plane, image.width, image.height);
    for (int64_t i = 0; i < image.pixels(); ++i) {
      plane[i] = Blended(smooth[i], plane[i], static_cast<float>(factor));
    }
  }
}

void AdjustHue(Planes& image, double factor) {
  if (image.channels == 1) return;
  const auto turn = static_cast<uint8_t>(static_cast<int>(factor * 255));
  uint8_t *red = image.plane(0), *green = image.plane(1), *blue = image.plane(2);
  for (int64_t i = 0; i < image.pixels(); ++i) {
    Hsv hsv = ToHsv(red[i], green[i], blue[i]);
    hsv.hue = static_cast<uint8_t>(hsv.hue + turn);
    const std::array<uint8_t, 3> rgb = ToRgb(hsv);
    red[i] = rgb[0];
    green[i] = rgb[1];
    blue[i] = rgb[2];
  }
}

void Posterize(Planes& image, int bits) {
  const auto mask = static_cast<uint8_t>(0xff << (8 - bits));
  Apply(image.bytes.data(), image.pixels() * image.channels,
        TableOf([&](int value) { return static_cast<uint8_t>(value & mask); }));
}

void Solarize(Planes& image, double threshold) {
  Apply(image.bytes.data(), image.pixels() * image.channels, TableOf([&](int value) {
          return static_cast<uint8_t>(value < threshold ? value : 255 - value);
        }));
}

void AutoContrast(Planes& image) {
  for (int c = 0; c < image.channels; ++c) {
    const auto counts = HistogramOf(image.plane(c), image.pixels());
    int low = 0, high = 255;
    while (low < 255 && counts[low] == 0) ++low;
    while (high > 0 && counts[high] == 0) --high;
    if (high <= low) continue;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    Apply(image.plane(c), image.pixels(),
          TableOf([&](int value) { return Clipped(static_cast<int>(value * scale + offset)); }));
  }
}

void Equalize(Planes& image) {
  for (int c = 0; c < image.channels; ++c) {
    const auto counts = HistogramOf(image.plane(c), image.pixels());
    int last = 255;
    while (last > 0 && counts[last] == 0) --last;
    const int64_t step = (image.pixels() - counts[last]) / 255;
    if (step == 0) continue;
    int64_t sum = step / 2;
    Apply(image.plane(c), image.pixels(), TableOf([&](int value) {
            const int64_t level = std::min<int64_t>(255, sum / step);
            sum += counts[value];
            return static_cast<uint8_t>(level);
          }));
  }
}

}  // namespace muster
