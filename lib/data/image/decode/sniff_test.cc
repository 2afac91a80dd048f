#include "lib/data/image/decode/sniff.h"

#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::sniff_test {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<ImageFormat> Sniff(absl::string_view bytes) {
  return SniffImage({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

TEST(SniffTest, FindsTheFormatByContent) {
  EXPECT_EQ(*Sniff("\xff\xd8\xff\xe0"), ImageFormat::kJpeg);
  EXPECT_EQ(*Sniff("\x89PNG\r\n\x1a\n..."), ImageFormat::kPng);
  EXPECT_EQ(*Sniff("RIFF....WEBPVP8 "), ImageFormat::kWebp);
}

TEST(SniffTest, NamesFormatsThatAreNotSupported) {
  EXPECT_THAT(Sniff("GIF89a").status().message(), HasSubstr("a GIF file; convert it to JPEG"));
  EXPECT_THAT(Sniff("BM1234").status().message(), HasSubstr("a BMP file"));
  EXPECT_THAT(Sniff(absl::string_view("II*\0", 4)).status().message(), HasSubstr("a TIFF file"));
  EXPECT_THAT(Sniff(absl::string_view("MM\0*", 4)).status().message(), HasSubstr("a TIFF file"));
}

TEST(SniffTest, RefusesOtherBytes) {
  EXPECT_THAT(Sniff("").status().message(), HasSubstr("has no bytes"));
  for (absl::string_view bytes : {"\xff", "\xff\xd8", "RIFF", "RIFF....WAVE", "\x89PNG", "text"}) {
    EXPECT_EQ(Sniff(bytes).status().code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
}

}  // namespace
}  // namespace muster::sniff_test
