#include "lib/data/image/resample.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/image/decode/encoded_jpeg.h"
#include "lib/data/image/golden_cases.h"
#include "zlib.h"

namespace muster::resample_test {
namespace {

ResampleFilter FilterOf(const std::string& name) {
  return name == "nearest"    ? ResampleFilter::kNearest
         : name == "bilinear" ? ResampleFilter::kBilinear
                              : ResampleFilter::kBicubic;
}

Image Picture(const GoldenCase& golden) {
  const int width = golden.Number("width"), height = golden.Number("height");
  const std::vector<uint8_t> pixels =
      TestPicture(width, height, golden.Number("channels"), golden.Number("seed"));
  Image image;
  std::memcpy(image.Reserve({.width = width, .height = height}, golden.Number("channels")),
              pixels.data(), pixels.size());
  return image;
}

uint32_t Resized(Resampler& resampler, const ResampleOptions& options, const Image& image) {
  const Region source = Resampler::Source(options);
  EXPECT_LE(source.left + source.width, options.from.width);
  EXPECT_LE(source.top + source.height, options.from.height);
  std::vector<uint8_t> to(image.channels * options.window.width * options.window.height);
  resampler.Resample(options, ViewOf(image, source.left, source.top), to.data());
  return static_cast<uint32_t>(crc32(0, to.data(), to.size()));
}

uint32_t Checksum(const GoldenCase& golden, const std::string& key) {
  return static_cast<uint32_t>(std::strtoul(golden.Word(key).c_str(), nullptr, 10));
}

TEST(ResampleTest, HasTheBitsOfPillow) {
  Resampler resampler;
  for (const GoldenCase& golden : ReadGoldens("resample.txt")) {
    SCOPED_TRACE(absl::StrCat(golden.name, " ", golden.Word("width"), "x", golden.Word("height"),
                              " to ", golden.Word("to_width"), "x", golden.Word("to_height"),
                              " in ", golden.Word("channels")));
    const Image image = Picture(golden);
    ResampleOptions options = {
        .from = {golden.Number("width"), golden.Number("height")},
        .to = {golden.Number("to_width"), golden.Number("to_height")},
        .window = {.width = golden.Number("to_width"), .height = golden.Number("to_height")},
        .filter = FilterOf(golden.name)};
    EXPECT_EQ(Resized(resampler, options, image), Checksum(golden, "checksum"));

    const ImageSize to = options.to;
    options.window = {.left = to.width / 3, .top = to.height / 4};
    options.window.width = to.width - to.width / 6 - options.window.left;
    options.window.height = to.height - to.height / 5 - options.window.top;
    options.is_flipped_horizontally = true;
    EXPECT_EQ(Resized(resampler, options, image), Checksum(golden, "across"));
    options.is_flipped_horizontally = false;
    options.is_flipped_vertically = true;
    EXPECT_EQ(Resized(resampler, options, image), Checksum(golden, "down"));
    resampler.Trim(0);
  }
}

TEST(ResampleTest, TakesPlanesAndInterleavedPixels) {
  const std::vector<uint8_t> pixels = TestPicture(50, 40, 3, 1);
  Image image;
  std::memcpy(image.Reserve({.width = 50, .height = 40}, 3), pixels.data(), pixels.size());
  std::vector<uint8_t> planes(pixels.size() + ByteBuffer::kSlackBytes);
  for (int i = 0; i < 2000; ++i) {
    for (int c = 0; c < 3; ++c) planes[c * 2000 + i] = pixels[3 * i + c];
  }
  const PixelView view = {
      .data = planes.data(), .row = 50, .pixel = 1, .channel = 2000, .channels = 3};
  Resampler resampler;
  for (ResampleFilter filter :
       {ResampleFilter::kNearest, ResampleFilter::kBilinear, ResampleFilter::kBicubic}) {
    const ResampleOptions options = {
        .from = {50, 40}, .to = {31, 23}, .window = {.width = 31, .height = 23}, .filter = filter};
    std::vector<uint8_t> a(3 * 31 * 23), b(a.size());
    resampler.Resample(options, ViewOf(image, 0, 0), a.data());
    resampler.Resample(options, view, b.data());
    EXPECT_EQ(a, b);
  }
}

}  // namespace
}  // namespace muster::resample_test
