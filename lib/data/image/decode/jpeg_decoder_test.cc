#include "lib/data/image/decode/jpeg_decoder.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/image/decode/encoded_jpeg.h"

namespace muster::jpeg_decoder_test {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::Status DecodeAll(JpegDecoder& decoder, absl::string_view file, int channels, Image& to) {
  const auto size = decoder.Open(Bytes(file));
  if (!size.ok()) return size.status();
  return decoder.Decode({.width = size->width, .height = size->height}, channels, to);
}

// Returns whether each pixel of `region` is the same in both images.
bool AreEqual(const Image& part, const Image& whole, const Region& region) {
  auto row = [&](const Image& image, int y) {
    return image.bytes.data() + ((int64_t{y} - image.region.top) * image.region.width +
                                 region.left - image.region.left) *
                                    image.channels;
  };
  for (int y = region.top; y < region.top + region.height; ++y) {
    if (std::memcmp(row(part, y), row(whole, y), region.width * whole.channels) != 0) return false;
  }
  return true;
}

TEST(JpegDecoderTest, APartHasThePixelsOfAFullDecode) {
  struct Sampling {
    int channels, horizontal, vertical;
  };
  std::mt19937 random(1);
  auto between = [&](int low, int high) { return low + static_cast<int>(random() % (high - low)); };
  JpegDecoder decoder;
  Image whole, part;
  int64_t skipped = 0;
  for (const Sampling& sampling : std::vector<Sampling>{
           {3, 1, 1}, {3, 2, 1}, {3, 2, 2}, {3, 1, 2}, {3, 4, 1}, {3, 4, 2}, {1, 1, 1}}) {
    for (int i = 0; i < 30; ++i) {
      const int width = between(1, 260), height = between(1, 200);
      const std::string file = EncodeJpeg(TestPicture(width, height, sampling.channels, i),
                                          {.width = width,
                                           .height = height,
                                           .channels = sampling.channels,
                                           .horizontal = sampling.horizontal,
                                           .vertical = sampling.vertical,
                                           .quality = 50 + i,
                                           .is_progressive = i % 10 == 9});
      for (int channels : {1, 3}) {
        ASSERT_TRUE(DecodeAll(decoder, file, channels, whole).ok());
        ASSERT_EQ(whole.region, (Region{0, 0, width, height}));
        for (int crop = 0; crop < 8; ++crop) {
          Region region = {.left = between(0, width), .top = between(0, height)};
          region.width = between(1, width - region.left + 1);
          region.height = between(1, height - region.top + 1);
          ASSERT_TRUE(decoder.Open(Bytes(file)).ok());
          ASSERT_TRUE(decoder.Decode(region, channels, part).ok());
          ASSERT_TRUE(AreEqual(part, whole, region))
              << sampling.horizontal << "x" << sampling.vertical << " of " << width << " x "
              << height << ": " << region.width << " x " << region.height << " at " << region.left
              << ", " << region.top;
          skipped += part.region.height < height;
        }
      }
    }
  }
  EXPECT_GT(skipped, 1000);
}

TEST(JpegDecoderTest, ScalesBySizes) {
  const std::string file =
      EncodeJpeg(TestPicture(101, 67, 3, 1), {.width = 101, .height = 67, .quality = 90});
  JpegDecoder decoder;
  Image image;
  for (int denominator : {2, 4, 8}) {
    ASSERT_TRUE(decoder.Open(Bytes(file)).ok());
    ASSERT_TRUE(decoder.DecodeScaled(denominator, 3, image).ok());
    EXPECT_EQ(image.region, (Region{0, 0, (101 + denominator - 1) / denominator,
                                    (67 + denominator - 1) / denominator}));
  }
}

TEST(JpegDecoderTest, RefusesDamage) {
  const std::string file =
      EncodeJpeg(TestPicture(64, 64, 3, 1), {.width = 64, .height = 64, .quality = 95});
  JpegDecoder decoder;
  Image image;
  ASSERT_TRUE(DecodeAll(decoder, file, 3, image).ok());
  for (size_t size = 2; size < file.size() - 2; size += 7) {
    const absl::Status cut = DecodeAll(decoder, file.substr(0, size), 3, image);
    EXPECT_EQ(cut.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(cut.message(), HasSubstr("JPEG: ")) << size;
  }
  ASSERT_TRUE(DecodeAll(decoder, file, 3, image).ok()) << "a decoder works after an error";
}

TEST(JpegDecoderTest, RefusesHugeImagesBeforeItReservesMemory) {
  std::string file = EncodeJpeg(TestPicture(8, 8, 3, 1), {.width = 8, .height = 8});
  const size_t frame = file.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  file.replace(frame + 5, 4, "\xfd\xe8\xfd\xe8");
  JpegDecoder decoder;
  EXPECT_THAT(decoder.Open(Bytes(file)).status().message(),
              HasSubstr("65000 x 65000 pixels are more than 268435456"));
}

TEST(JpegDecoderTest, RefusesProgressiveFilesThatTakeTooMuchMemory) {
  for (const int horizontal : {1, 2}) {
    std::string file = EncodeJpeg(TestPicture(16, 16, 3, 1), {.width = 16,
                                                              .height = 16,
                                                              .horizontal = horizontal,
                                                              .vertical = horizontal,
                                                              .is_progressive = true});
    const size_t frame = file.find("\xff\xc2");
    ASSERT_NE(frame, std::string::npos);
    file.replace(frame + 5, 4, "\x27\x10\x27\x10");
    JpegDecoder decoder;
    const auto opened = decoder.Open(Bytes(file));
    if (horizontal == 2) {
      EXPECT_TRUE(opened.ok()) << "300 MB are possible: " << opened.status();
      continue;
    }
    EXPECT_EQ(opened.status(),
              absl::InvalidArgumentError(
                  "JPEG: the scans of 10000 x 10000 pixels take 600000000 bytes of memory, more "
                  "than 536870912; store it as a baseline JPEG"));
  }
}

TEST(JpegDecoderTest, RefusesTooManyScans) {
  std::string file = EncodeJpeg(TestPicture(64, 64, 1, 1),
                                {.width = 64, .height = 64, .channels = 1, .is_progressive = true});
  // Repeats the last scan, from its SOS marker to the end of the image.
  const size_t scan = file.rfind(std::string("\xff\xda"));
  const std::string last = file.substr(scan, file.size() - 2 - scan);
  std::string many = file.substr(0, file.size() - 2);
  for (int i = 0; i < JpegDecoder::kScansMax; ++i) many += last;
  many += "\xff\xd9";
  JpegDecoder decoder;
  Image image;
  EXPECT_FALSE(DecodeAll(decoder, many, 1, image).ok());
}

TEST(JpegDecoderTest, ReadsTheOrientation) {
  const std::string file = EncodeJpeg(TestPicture(8, 8, 3, 1), {.width = 8, .height = 8});
  auto with_exif = [&](std::string exif) {
    const size_t length = exif.size() + 2;
    const char marker[] = {'\xff', '\xe1', static_cast<char>(length >> 8),
                           static_cast<char>(length)};
    return file.substr(0, 2) + std::string(marker, 4) + exif + file.substr(2);
  };
  const std::string big("Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
                        32);
  const std::string little(
      "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x08\0\0\0\0\0\0\0", 32);
  JpegDecoder decoder;
  ASSERT_TRUE(decoder.Open(Bytes(file)).ok());
  EXPECT_EQ(decoder.Orientation(), 1);
  const std::string files[] = {with_exif(big), with_exif(little), with_exif(big.substr(0, 20))};
  ASSERT_TRUE(decoder.Open(Bytes(files[0])).ok());
  EXPECT_EQ(decoder.Orientation(), 6);
  ASSERT_TRUE(decoder.Open(Bytes(files[1])).ok());
  EXPECT_EQ(decoder.Orientation(), 8);
  ASSERT_TRUE(decoder.Open(Bytes(files[2])).ok());
  EXPECT_EQ(decoder.Orientation(), 1) << "the entry is cut off";
}

}  // namespace
}  // namespace muster::jpeg_decoder_test
