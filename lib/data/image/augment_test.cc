#include "lib/data/image/augment.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/image/decode/encoded_jpeg.h"
#include "lib/data/image/golden_cases.h"
#include "zlib.h"

namespace muster::augment_test {
namespace {

constexpr int kWidth = 23, kHeight = 17;

Planes Picture(int channels) {
  const std::vector<uint8_t> pixels = TestPicture(kWidth, kHeight, channels, 5);
  Planes planes;
  planes.Reserve(kWidth, kHeight, channels);
  for (size_t i = 0; i < pixels.size(); ++i) planes.plane(i % channels)[i / channels] = pixels[i];
  return planes;
}

void Darken(Planes& image) {
  for (int64_t i = 0; i < image.pixels() * image.channels; ++i) {
    image.bytes.data()[i] = image.bytes.data()[i] / 3 + 20;
  }
}

ResampleFilter FilterOf(const std::string& name) {
  return name == "nearest"    ? ResampleFilter::kNearest
         : name == "bilinear" ? ResampleFilter::kBilinear
                              : ResampleFilter::kBicubic;
}

void Apply(const GoldenCase& golden, Planes& image) {
  Planes scratch;
  const std::string& name = golden.name;
  const double factor = golden.Real("factor");
  if (name == "brightness") return AdjustBrightness(image, factor);
  if (name == "contrast") return AdjustContrast(image, factor);
  if (name == "saturation") return AdjustSaturation(image, factor);
  if (name == "sharpness") return AdjustSharpness(image, factor, scratch);
  if (name == "hue") return AdjustHue(image, factor);
  if (name == "posterize") return Posterize(image, static_cast<int>(factor));
  if (name == "solarize") return Solarize(image, factor);
  if (name == "orientation") return Orient(image, static_cast<int>(factor), scratch);
  if (name == "autocontrast" || name == "equalize") {
    if (factor == 1) Darken(image);
    return name == "equalize" ? Equalize(image) : AutoContrast(image);
  }
  const AffineMatrix matrix = name == "ShearX"       ? ShearX(factor)
                              : name == "ShearY"     ? ShearY(factor)
                              : name == "TranslateX" ? Translate(static_cast<int>(factor), 0)
                              : name == "TranslateY" ? Translate(0, static_cast<int>(factor))
                                                     : Rotate(factor, image.width, image.height);
  Transform(image, matrix, FilterOf(golden.Word("filter")), scratch);
}

TEST(AugmentTest, EqualsTorchvision) {
  for (const GoldenCase& golden : ReadGoldens("augment.txt")) {
    const bool has_filter = golden.words.count("filter") != 0;
    SCOPED_TRACE(absl::StrCat(golden.name, " ", golden.Word("factor"), " in ",
                              golden.Word("channels"), " ",
                              has_filter ? golden.Word("filter") : ""));
    Planes image = Picture(golden.Number("channels"));
    Apply(golden, image);
    EXPECT_EQ(crc32(0, image.bytes.data(), image.pixels() * image.channels),
              std::strtoul(golden.Word("checksum").c_str(), nullptr, 10));
  }
}

TEST(AugmentTest, TakesTinyImages) {
  Planes image, scratch;
  image.Reserve(1, 1, 3);
  std::fill_n(image.bytes.data(), 3, uint8_t{77});
  AdjustBrightness(image, 1.5);
  AdjustContrast(image, 0.5);
  AdjustSaturation(image, 0.5);
  AdjustHue(image, 0.5);
  AdjustSharpness(image, 1.9, scratch);
  AutoContrast(image);
  Equalize(image);
  Transform(image, Rotate(30, 1, 1), ResampleFilter::kBicubic, scratch);
  Orient(image, 6, scratch);
  EXPECT_EQ(image.pixels(), 1);
}

}  // namespace
}  // namespace muster::augment_test
