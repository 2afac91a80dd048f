#include <zlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "lib/data/hostile/hostile_file.h"
#include "lib/data/image/decode/encoded_jpeg.h"
#include "lib/data/image/decode/jpeg_decoder.h"
#include "lib/data/image/golden_cases.h"
#include "lib/data/source/image_graph.h"

namespace muster::hostile_images_test {
namespace {

std::string Photo(const JpegOptions& options = {.width = 32, .height = 24}) {
  return EncodeJpeg(TestPicture(options.width, options.height, options.channels, 1), options);
}

std::string Golden(absl::string_view name) {
  for (const GoldenCase& golden : ReadGoldens("decode.txt")) {
    if (golden.name == name) return golden.Bytes("file");
  }
  ADD_FAILURE() << name;
  return "";
}

std::string BigEndian(uint32_t number) {
  std::string text;
  for (int shift : {24, 16, 8, 0}) text.push_back(static_cast<char>(number >> shift));
  return text;
}

std::string PngChunk(absl::string_view kind, absl::string_view content) {
  const std::string checked = absl::StrCat(kind, content);
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(checked.data()), checked.size());
  return absl::StrCat(BigEndian(content.size()), checked, BigEndian(crc));
}

// Returns a PNG file up to its pixels.
std::string PngHeader(uint32_t width, uint32_t height, int depth, int color) {
  const char rest[] = {static_cast<char>(depth), static_cast<char>(color), 0, 0, 0};
  return absl::StrCat("\x89PNG\r\n\x1a\n",
                      PngChunk("IHDR", absl::StrCat(BigEndian(width), BigEndian(height),
                                                    absl::string_view(rest, sizeof(rest)))));
}

std::string Riff(absl::string_view kind, absl::string_view content) {
  return absl::StrCat("RIFF", LittleEndian(12 + content.size(), 4), "WEBP", kind,
                      LittleEndian(content.size(), 4), content);
}

// A class "cat" with three images, the second of which is hostile.
class HostileImagesTest : public testing::Test {
 protected:
  HostileImagesTest() {
    for (const char* name : {"/cat/a.jpg", "/cat/c.jpg"}) WriteFile(folder_ + name, Photo());
    spec_.mutable_images()->set_path(folder_);
    v1::Resize& resize = *spec_.mutable_image()->add_train()->mutable_resize();
    resize.set_height(2);
    resize.set_width(2);
  }

  // Each error names the record, and the offset of the image in its file.
  void ExpectDamage(const std::vector<std::pair<const char*, std::string>>& files,
                    const std::string& part) {
    std::vector<HostileFile> damaged;
    for (const auto& [name, bytes] : files) {
      damaged.push_back(Damaged(name, bytes, {absl::StrCat("record 1 at byte 0: ", part)}));
    }
    ExpectOneErrorEach(damaged, path_, spec_, ImageGraph(/*classes=*/10));
  }

  const std::string folder_ = EmptyFolder("hostile_images");
  const std::string path_ = folder_ + "/cat/b.jpg";
  v1::DataSpec spec_;
};

TEST_F(HostileImagesTest, FilesThatAreNoImages) {
  ExpectDamage({{"empty", ""}}, "the image has no bytes");
  ExpectDamage({{"text", "some text\n"}, {"zeros", std::string(4096, '\0')}},
               "the image is not a JPEG, PNG or WebP file");
  ExpectDamage({{"gif", "GIF89a"}}, "the image is a GIF file");
  ExpectDamage({{"bmp", "BM and more"}}, "the image is a BMP file");
}

TEST_F(HostileImagesTest, JpegFilesThatAreCutOff) {
  const std::string photo = Photo();
  ExpectDamage({{"jpeg of a marker", photo.substr(0, 3)},
                {"jpeg cut in a quantization table", photo.substr(0, photo.find("\xff\xdb") + 9)},
                {"jpeg cut in the frame", photo.substr(0, photo.find("\xff\xc0") + 6)},
                {"jpeg cut in a Huffman table", photo.substr(0, photo.find("\xff\xc4") + 9)},
                {"jpeg cut in the scan's header", photo.substr(0, photo.find("\xff\xda") + 4)},
                {"jpeg cut in the scan", photo.substr(0, photo.find("\xff\xda") + 40)},
                {"jpeg in CMYK, cut", Golden("jpeg_cmyk").substr(0, 300)}},
               "JPEG: Premature end of JPEG file");
}

TEST_F(HostileImagesTest, JpegFilesWithWrongHeaders) {
  const std::string photo = Photo();
  const size_t frame = photo.find("\xff\xc0");  // length, precision, height, width, channels
  const std::string none(2, '\0');
  ExpectDamage({{"jpeg of 4 gigapixels", Patched(photo, frame + 5, "\xfd\xe8\xfd\xe8")}},
               "JPEG: 65000 x 65000 pixels are more than 268435456");
  ExpectDamage({{"jpeg without height", Patched(photo, frame + 5, none)},
                {"jpeg without width", Patched(photo, frame + 7, none)}},
               "JPEG: Empty JPEG image");
  ExpectDamage({{"jpeg of 12 bits", Patched(photo, frame + 4, "\x0c")}},
               "JPEG: Unsupported JPEG data precision 12");
  ExpectDamage({{"jpeg of 5 channels", Patched(photo, frame + 9, "\x05")}},
               "JPEG: Bogus marker length");
  const size_t table = photo.find("\xff\xc4") + 5;
  ExpectDamage(
      {{"jpeg with a wrong Huffman table", Patched(photo, table, std::string(16, '\xff'))}},
      "JPEG: Bogus Huffman table definition");
}

TEST_F(HostileImagesTest, JpegFilesThatTakeMuchMemoryOrTime) {
  const std::string progressive =
      Photo({.width = 64, .height = 64, .horizontal = 1, .vertical = 1, .is_progressive = true});
  const size_t frame = progressive.find("\xff\xc2");
  ExpectDamage({{"jpeg of large scans", Patched(progressive, frame + 5, "\x27\x10\x27\x10")}},
               "JPEG: the scans of 10000 x 10000 pixels take 600000000 bytes of memory");
  const size_t scan = progressive.rfind("\xff\xda");
  std::string many = progressive.substr(0, progressive.size() - 2);
  for (int i = 0; i < 2 * JpegDecoder::kScansMax; ++i) {
    many += progressive.substr(scan, progressive.size() - 2 - scan);
  }
  ExpectDamage({{"jpeg of many scans", many + "\xff\xd9"}}, "JPEG: ");
  ExpectDamage({{"jpeg of one long row", Photo({.width = 5000, .height = 1})}},
               "an image of 1 x 5000 pixels cannot become one of 2 x 2");
}

TEST_F(HostileImagesTest, PngFiles) {
  const std::string png = Golden("png_rgb");
  const size_t header_crc = 8 + 8 + 13, end = png.size() - 12;  // of the last chunk
  ExpectDamage({{"png with another CRC of its header", Patched(png, header_crc, "none")}},
               "PNG: IHDR: CRC error");
  ExpectDamage({{"png with another CRC of its pixels", Patched(png, end - 4, "none")}},
               "PNG: IDAT: CRC error");
  ExpectDamage({{"png of a signature", png.substr(0, 8)},
                {"png cut in its header", png.substr(0, 20)},
                {"png cut in its pixels", png.substr(0, 80)}},
               "PNG: the file is cut off");
  ExpectDamage({{"png of a gigapixel", PngHeader(32768, 32768, 8, 2) + PngChunk("IDAT", "")}},
               "PNG: 32768 x 32768 pixels are more than 268435456");
  ExpectDamage({{"png without width", PngHeader(0, 9, 8, 2)},
                {"png of 4 billion columns", PngHeader(0xffffffff, 1, 8, 2)},
                {"png of 3 bits", PngHeader(9, 9, 3, 2)},
                {"png without a palette", PngHeader(9, 9, 8, 3) + PngChunk("IDAT", "x")},
                {"png without pixels", PngHeader(9, 9, 8, 2) + PngChunk("IEND", "")},
                {"png with other bytes as pixels",
                 PngHeader(9, 9, 8, 2) + PngChunk("IDAT", "xyz") + PngChunk("IEND", "")}},
               "PNG: ");
}

TEST_F(HostileImagesTest, WebpFiles) {
  for (const char* name : {"webp_lossy", "webp_lossless"}) {
    const std::string webp = Golden(name);
    ExpectDamage({{name, webp.substr(0, webp.size() - 14)}},
                 "WebP: the file is damaged or cut off");
    ExpectDamage({{name, webp.substr(0, 14)}}, "WebP: the header is damaged");
  }
  ExpectDamage({{"webp with frames", Riff("VP8X", std::string("\x02\0\0\0\x09\0\0\x09\0\0", 10))}},
               "WebP: the file is animated");
  // 16,383 x 16,383 pixels, which are just allowed.
  const std::string huge = "\x2f" + LittleEndian(16382 | 16382 << 14, 4) + "12345";
  spec_.mutable_image()->mutable_train(0)->mutable_center_crop()->set_size(2);
  ExpectDamage({{"webp of 268 megapixels in 30 bytes", Riff("VP8L", huge)}},
               "WebP: the file is damaged or cut off");
}

TEST_F(HostileImagesTest, AFileOfMoreThanAGibibyteIsNotRead) {
  WriteFile(path_, "");
  std::filesystem::resize_file(path_, (1 << 30) + 1);
  ExpectOneError(Damaged("image of a gibibyte", "", {"record 1 at byte 0: has 1073741825 bytes"}),
                 path_, [&] { return ErrorsOf(spec_, ImageGraph(/*classes=*/10)); });
}

}  // namespace
}  // namespace muster::hostile_images_test
