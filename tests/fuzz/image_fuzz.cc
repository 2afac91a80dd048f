// Fuzzes image files: JPEG, PNG and WebP from untrusted sources that workers decode.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "lib/data/image/decode/image_decoder.h"
#include "lib/data/image/golden_cases.h"
#include "lib/data/image/image_maker.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

constexpr int kHeight = 6, kWidth = 5;
// A file of a few bytes may say that it has many pixels, which take long to decode.
constexpr int64_t kPixelsMax = int64_t{1} << 22;

std::unique_ptr<const ImageMaker> Maker(bool is_fast, int channels) {
  v1::ImageSpec spec;
  auto* const crop = spec.add_train()->mutable_random_resized_crop();
  crop->set_height(kHeight);
  crop->set_width(kWidth);
  spec.add_train()->mutable_random_flip();
  auto* const resize = spec.add_evaluate()->mutable_resize();
  resize->set_height(kHeight);
  resize->set_width(kWidth);
  spec.set_use_exif_orientation(true);
  if (is_fast) spec.set_decode(v1::IMAGE_DECODE_FAST);
  auto maker = ImageMaker::Create(spec, /*seed=*/1, channels, kHeight, kWidth);
  CHECK(maker.ok()) << maker.status();
  return *std::move(maker);
}

void CheckError(const absl::Status& status) {
  if (status.ok()) return;
  CHECK(absl::IsInvalidArgument(status)) << status;
  CHECK(!status.message().empty());
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  static const auto* const makers = new std::array<std::unique_ptr<const ImageMaker>, 3>{
      Maker(/*is_fast=*/false, 3), Maker(/*is_fast=*/true, 3), Maker(/*is_fast=*/false, 1)};
  static auto* const decoder = new ImageDecoder;
  const absl::Span<const std::byte> file(reinterpret_cast<const std::byte*>(bytes.data()),
                                         bytes.size());
  const auto size = decoder->Open(file);
  if (!size.ok()) {
    CheckError(size.status());
    return false;
  }
  CHECK_LE(int64_t{size->width} * size->height, kImagePixelsMax);
  if (int64_t{size->width} * size->height > kPixelsMax) return false;
  bool is_taken = false;
  for (const auto& maker : *makers) {
    std::array<uint8_t, 3 * kHeight * kWidth> row;
    const auto to = absl::MakeSpan(row).first(maker->values().size() * kHeight * kWidth);
    for (int64_t sample = 0; sample < 2; ++sample) {
      CheckError(maker->Training(file, {.epoch = 0, .sample = sample}, to));
    }
    const absl::Status whole = maker->Evaluation(file, to);
    CheckError(whole);
    is_taken |= whole.ok();
  }
  return is_taken;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const GoldenCase& golden : ReadGoldens("decode.txt")) seeds.push_back(golden.Bytes("file"));
  return seeds;
}

int FuzzTestInputs() { return 4000; }

}  // namespace muster
