// JPEG files for tests and benchmarks.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "jpeglib.h"

namespace muster {

struct JpegOptions {
  int width = 0;
  int height = 0;
  int channels = 3;    // 1 gives a gray file
  int horizontal = 2;  // sampling factors of luminance
  int vertical = 2;
  int quality = 90;
  bool is_progressive = false;
};

// Returns `pixels` (interleaved, `channels` bytes each) as a JPEG file.
inline std::string EncodeJpeg(const std::vector<uint8_t>& pixels, const JpegOptions& options) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = options.width;
  info.image_height = options.height;
  info.input_components = options.channels;
  info.in_color_space = options.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (options.channels == 3) {
    info.comp_info[0].h_samp_factor = options.horizontal;
    info.comp_info[0].v_samp_factor = options.vertical;
  }
  if (options.is_progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<uint8_t*>(pixels.data()) +
                int64_t{info.next_scanline} * options.width * options.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string file(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return file;
}

// Returns a picture with smooth areas, edges and noise, the same for each `seed`.
inline std::vector<uint8_t> TestPicture(int width, int height, int channels, uint32_t seed) {
  std::vector<uint8_t> pixels(int64_t{width} * height * channels);
  uint32_t state = seed * 2654435761u + 1;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        state = state * 1664525u + 1013904223u;
        const uint32_t smooth = (x * (3 + c) + y * 2 * (c + 1)) / 5 + seed;
        const uint32_t edge = ((x / 13 + y / 17 + c) & 3) * 40;
        pixels[(int64_t{y} * width + x) * channels + c] =
            static_cast<uint8_t>(smooth + edge + (state >> 28));
      }
    }
  }
  return pixels;
}

}  // namespace muster
