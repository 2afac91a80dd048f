// Measures images made per second on one core: JPEG files of 500 x 375 pixels to random resized
// crops of 224 x 224, flipped at random. The bare loops use libjpeg and the same crops.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "glog/logging.h"
#include "lib/data/image/crop.h"
#include "lib/data/image/decode/encoded_jpeg.h"
#include "lib/data/image/decode/jpeg_decoder.h"
#include "lib/data/image/image_maker.h"
#include "lib/data/image/image_spec.h"
#include "lib/data/image/resample.h"

namespace muster {
namespace {

constexpr int kWidth = 500, kHeight = 375, kSide = 224;

v1::ImageSpec Spec() {
  v1::ImageSpec spec;
  spec.add_train()->mutable_random_resized_crop()->set_size(kSide);
  spec.add_train()->mutable_random_flip();
  for (float mean : {0.485f, 0.456f, 0.406f}) spec.add_mean(mean);
  for (float std : {0.229f, 0.224f, 0.225f}) spec.add_std(std);
  return spec;
}

// Returns made files of about 110 KB, as photos of this size have. PHOTOS=FOLDER in the environment
// gives the JPEG files of a folder instead; all must have 500 x 375 pixels.
std::vector<std::string> MakeFiles() {
  std::vector<std::string> files;
  if (const char* folder = std::getenv("PHOTOS")) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  } else {
    for (int i = 0; i < 16; ++i) {
      files.push_back(EncodeJpeg(TestPicture(kWidth, kHeight, 3, i),
                                 {.width = kWidth, .height = kHeight, .quality = 92}));
    }
  }
  CHECK(!files.empty());
  return files;
}

const std::vector<std::string>& Files() {
  static const auto* const files = new std::vector<std::string>(MakeFiles());
  return *files;
}

absl::Span<const std::byte> FileOf(int64_t sample) {
  const std::string& file = Files()[sample % Files().size()];
  return {reinterpret_cast<const std::byte*>(file.data()), file.size()};
}

Region CropOf(int64_t sample) {
  static const v1::ImageSpec* const spec = new v1::ImageSpec(WithImageDefaults(Spec(), 3));
  return DrawResizedCrop(spec->train(0).random_resized_crop(), {kWidth, kHeight},
                         TransformDraws(1, {0, sample}, 0));
}

void Make(benchmark::State& state) {
  const auto maker = ImageMaker::Create(Spec(), 1, 3, kSide, kSide);
  CHECK(maker.ok()) << maker.status();
  std::vector<uint8_t> row(3 * kSide * kSide);
  int64_t sample = 0;
  for (auto _ : state) {
    CHECK((*maker)->Training(FileOf(sample), {0, sample}, absl::MakeSpan(row)).ok());
    ++sample;
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["file_bytes"] = static_cast<double>(FileOf(0).size());
}
BENCHMARK(Make);

// Decodes rows of a file from `region`, without checks. Columns have the margin of an exact crop.
void BareDecode(absl::Span<const std::byte> file, const Region& region, std::vector<uint8_t>& to) {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const uint8_t*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  jpeg_start_decompress(&info);
  const int end = region.top + region.height;
  if (region.width < kWidth) {
    JDIMENSION left = std::max(0, region.left - 16);
    JDIMENSION width = std::min(kWidth, region.left + region.width + 16) - left;
    jpeg_crop_scanline(&info, &left, &width);
  }
  if (region.top > 0) jpeg_skip_scanlines(&info, region.top);
  const int64_t row_bytes = int64_t{3} * info.output_width;
  to.resize(row_bytes * kHeight + 64);
  for (int64_t y = 0; static_cast<int>(info.output_scanline) < end; ++y) {
    JSAMPROW row = to.data() + y * row_bytes;
    jpeg_read_scanlines(&info, &row, 1);
  }
  benchmark::DoNotOptimize(to.data());
  jpeg_abort_decompress(&info);
  jpeg_destroy_decompress(&info);
}

void BarePartialDecode(benchmark::State& state) {
  std::vector<uint8_t> pixels;
  int64_t sample = 0;
  for (auto _ : state) {
    BareDecode(FileOf(sample), CropOf(sample), pixels);
    ++sample;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BarePartialDecode);

void BareFullDecode(benchmark::State& state) {
  std::vector<uint8_t> pixels;
  int64_t sample = 0;
  for (auto _ : state) {
    BareDecode(FileOf(sample), {.width = kWidth, .height = kHeight}, pixels);
    ++sample;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BareFullDecode);

// The partial decode and the resampling, without an ImageMaker.
void BarePartialDecodeAndResample(benchmark::State& state) {
  JpegDecoder decoder;
  Resampler resampler;
  Image image;
  std::vector<uint8_t> row(3 * kSide * kSide);
  int64_t sample = 0;
  for (auto _ : state) {
    const Region crop = CropOf(sample);
    CHECK(decoder.Open(FileOf(sample)).ok());
    CHECK(decoder.Decode(crop, 3, image).ok());
    resampler.Resample({.from = {crop.width, crop.height},
                        .to = {kSide, kSide},
                        .window = {.width = kSide, .height = kSide}},
                       ViewOf(image, crop.left - image.region.left, crop.top - image.region.top),
                       row.data());
    ++sample;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BarePartialDecodeAndResample);

void Resample(benchmark::State& state) {
  JpegDecoder decoder;
  Resampler resampler;
  Image image;
  CHECK(decoder.Open(FileOf(0)).ok());
  CHECK(decoder.Decode({.width = kWidth, .height = kHeight}, 3, image).ok());
  std::vector<uint8_t> row(3 * kSide * kSide);
  int64_t sample = 0;
  for (auto _ : state) {
    const Region crop = CropOf(sample);
    resampler.Resample({.from = {crop.width, crop.height},
                        .to = {kSide, kSide},
                        .window = {.width = kSide, .height = kSide}},
                       ViewOf(image, crop.left, crop.top), row.data());
    ++sample;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Resample);

}  // namespace
}  // namespace muster

BENCHMARK_MAIN();
