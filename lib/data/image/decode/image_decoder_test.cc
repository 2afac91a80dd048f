#include "lib/data/image/decode/image_decoder.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/data/image/golden_cases.h"

namespace muster::image_decoder_test {
namespace {

using ::testing::HasSubstr;

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::Status DecodeAll(ImageDecoder& decoder, absl::string_view file, int channels, Image& to) {
  const auto size = decoder.Open(Bytes(file));
  if (!size.ok()) return size.status();
  return decoder.Decode({.width = size->width, .height = size->height}, channels, to);
}

TEST(ImageDecoderTest, DecodesAsPillow) {
  ImageDecoder decoder;
  Image image;
  for (const GoldenCase& golden : ReadGoldens("decode.txt")) {
    const std::string file = golden.Bytes("file");
    // Pillow has another version of libjpeg and may have another one of libwebp.
    const bool is_lossy = golden.name.find("jpeg") == 0 || golden.name == "webp_lossy";
    for (int channels : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(golden.name, " in ", channels));
      ASSERT_EQ(DecodeAll(decoder, file, channels, image), absl::OkStatus());
      EXPECT_EQ(image.region, (Region{0, 0, golden.Number("width"), golden.Number("height")}));
      EXPECT_EQ(image.channels, channels);
      const std::string expected = golden.Bytes(channels == 1 ? "gray" : "rgb");
      int difference = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        difference = std::max(difference,
                              std::abs(image.bytes.data()[i] - static_cast<uint8_t>(expected[i])));
      }
      EXPECT_LE(difference, is_lossy ? 1 : 0);
    }
  }
}

TEST(ImageDecoderTest, RefusesFilesThatAreCutOff) {
  ImageDecoder decoder;
  Image image;
  for (const GoldenCase& golden : ReadGoldens("decode.txt")) {
    const std::string file = golden.Bytes("file");
    for (size_t size = 0; size + 12 < file.size(); ++size) {
      const absl::Status cut = DecodeAll(decoder, file.substr(0, size), 3, image);
      if (golden.name.find("jpeg") == 0 && cut.ok()) continue;  // see JpegDecoderTest
      EXPECT_EQ(cut.code(), absl::StatusCode::kInvalidArgument) << golden.name << " at " << size;
    }
    EXPECT_TRUE(DecodeAll(decoder, file, 3, image).ok());
  }
}

TEST(ImageDecoderTest, RefusesAPngOfTooManyPixels) {
  // A header of 32,768 x 16,384 pixels, and the beginning of the next chunk.
  const GoldenCase golden = {.name = "huge",
                             .words = {{"file",
                                        "89504e470d0a1a0a0000000d4948445200008000000040000802000000"
                                        "8703aba3000000004944415435af061e"}}};
  ImageDecoder decoder;
  EXPECT_THAT(decoder.Open(Bytes(golden.Bytes("file"))).status().message(),
              HasSubstr("PNG: 32768 x 16384 pixels are more than"));
}

}  // namespace
}  // namespace muster::image_decoder_test
