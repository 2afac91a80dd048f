// Decoded images in memory.
#pragma once

#include <cstdint>
#include <memory>

namespace muster {

inline constexpr int64_t kImagePixelsMax = int64_t{1} << 28;

struct ImageSize {
  int width = 0;
  int height = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// A rectangle of pixels: columns [left, left + width), rows [top, top + height).
struct Region {
  int left = 0;
  int top = 0;
  int width = 0;
  int height = 0;
  friend bool operator==(const Region&, const Region&) = default;
};

// Memory that is used again and is not initialized.
class ByteBuffer {
 public:
  // Loops that read whole vectors may read this far behind the end.
  static constexpr int64_t kSlackBytes = 64;

  // Returns memory for `bytes` and kSlackBytes. It replaces what was reserved before.
  uint8_t* Reserve(int64_t bytes) {
    if (bytes + kSlackBytes > capacity_) {
      bytes_.reset();
      capacity_ = bytes + kSlackBytes + bytes / 4;
      bytes_.reset(new uint8_t[capacity_]);
    }
    return bytes_.get();
  }

  // Frees memory of more than `bytes`.
  void Trim(int64_t bytes) {
    if (capacity_ <= bytes) return;
    bytes_.reset();
    capacity_ = 0;
  }

  uint8_t* data() { return bytes_.get(); }
  const uint8_t* data() const { return bytes_.get(); }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  int64_t capacity_ = 0;
};

// The pixels of `region` of a picture, interleaved: channel c of column x, row y of the region is
// data()[(y * region.width + x) * channels + c].
struct Image {
  Region region;
  int channels = 0;  // 1 or 3
  ByteBuffer bytes;

  uint8_t* Reserve(const Region& part, int channel_count) {
    region = part;
    channels = channel_count;
    return bytes.Reserve(int64_t{part.width} * part.height * channel_count);
  }
};

// Returns the luminance of a pixel as Pillow computes it.
inline uint8_t Luminance(uint8_t red, uint8_t green, uint8_t blue) {
  return static_cast<uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

// Makes the three channels of `image` one.
inline void ToLuminance(Image& image) {
  uint8_t* const data = image.bytes.data();
  const int64_t pixels = int64_t{image.region.width} * image.region.height;
  for (int64_t i = 0; i < pixels; ++i) {
    data[i] = Luminance(data[3 * i], data[3 * i + 1], data[3 * i + 2]);
  }
  image.channels = 1;
}

}  // namespace muster
