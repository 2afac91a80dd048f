#include "lib/data/image/image_maker.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "lib/data/image/crop.h"
#include "lib/data/image/decode/encoded_jpeg.h"
#include "lib/data/image/decode/image_decoder.h"
#include "lib/data/image/golden_cases.h"
#include "lib/data/image/image_spec.h"
#include "lib/data/image/random_transforms.h"
#include "lib/data/stage_times.h"

namespace muster::image_maker_test {
namespace {

using ::testing::HasSubstr;
using Rows = std::vector<uint8_t>;

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

v1::ImageSpec Spec(const std::string& text) {
  v1::ImageSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  return spec;
}

// Makers of 24 x 20 pixels.
constexpr int kHeight = 24, kWidth = 20;

std::unique_ptr<const ImageMaker> Maker(const std::string& spec, int channels = 3,
                                        uint64_t seed = 1) {
  auto maker = ImageMaker::Create(Spec(spec), seed, channels, kHeight, kWidth);
  EXPECT_TRUE(maker.ok()) << maker.status();
  return *std::move(maker);
}

Rows Train(const ImageMaker& maker, absl::string_view file, SampleRef sample, int channels = 3) {
  Rows rows(channels * kHeight * kWidth);
  EXPECT_EQ(maker.Training(Bytes(file), sample, absl::MakeSpan(rows)), absl::OkStatus());
  return rows;
}

int Difference(const Rows& a, absl::string_view b) {
  EXPECT_EQ(a.size(), b.size());
  int most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - static_cast<uint8_t>(b[i])));
  }
  return most;
}

std::string Photo(int width = 150, int height = 110) {
  return EncodeJpeg(TestPicture(width, height, 3, 1), {.width = width, .height = height});
}

TEST(ImageMakerTest, EqualsTorchvisionInEvaluation) {
  for (const GoldenCase& golden : ReadGoldens("evaluation.txt")) {
    SCOPED_TRACE(absl::StrCat(golden.name, " of ", golden.Word("format")));
    v1::ImageSpec spec = Spec("mean: [ 0.485, 0.456, 0.406 ] std: [ 0.229, 0.224, 0.225 ]");
    auto add = [&](const std::string& text) {
      spec.MergeFrom(Spec(absl::StrCat("evaluate { ", text, " }")));
    };
    if (golden.name == "resize_center") {
      add("resize { size: 21 }");
      add("center_crop { height: 18 width: 16 }");
    } else if (golden.name == "bicubic") {
      add("resize { height: 18 width: 16 interpolation: INTERPOLATION_BICUBIC }");
    } else {
      add("resize { height: 11 width: 21 }");
      add("center_crop { height: 18 width: 16 }");
    }
    const auto maker = ImageMaker::Create(spec, 1, 3, 18, 16);
    ASSERT_TRUE(maker.ok()) << maker.status();
    Rows rows(3 * 18 * 16);
    ASSERT_EQ((*maker)->Evaluation(Bytes(golden.Bytes("file")), absl::MakeSpan(rows)),
              absl::OkStatus());
    EXPECT_LE(Difference(rows, golden.Bytes("pixels")), golden.Word("format") == "jpeg" ? 1 : 0);
    if (golden.Word("format") == "jpeg") continue;
    const auto value = [&](int c, int y, int x) {
      return (*maker)->values()[c][rows[(c * 18 + y) * 16 + x]];
    };
    EXPECT_FLOAT_EQ(value(0, 12, 9), static_cast<float>(golden.Real("first")));
    EXPECT_FLOAT_EQ(value(2, 12, 9), static_cast<float>(golden.Real("last")));
  }
}

TEST(ImageMakerTest, ASideShrinksTo1Of2048AtMost) {
  const auto maker = Maker("train { resize { height: 24 width: 20 } }");
  Rows rows(3 * kHeight * kWidth);
  const auto make = [&](const std::string& file) {
    return maker->Training(Bytes(file), {}, absl::MakeSpan(rows));
  };
  EXPECT_EQ(make(Photo(20 * 2048, 1)), absl::OkStatus());
  EXPECT_EQ(
      make(Photo(20 * 2048 + 1, 1)),
      absl::InvalidArgumentError("an image of 1 x 40961 pixels cannot become one of 24 x 20; "
                                 "a side shrinks to 1/2048 at most, so crop the image first"));
  EXPECT_TRUE(absl::IsInvalidArgument(make(Photo(1, 24 * 2048 + 1))));
}

// A crop, a resize and a flip are one step. The same transforms one after the other give the same
// bytes.
TEST(ImageMakerTest, FusedTransformsGiveTheBytesOfSeparateOnes) {
  const std::string file = Photo();
  const auto maker = Maker(
      "train { random_resized_crop { height: 24 width: 20 } } train { random_flip {} }"
      "train { random_flip { vertical_probability: 0.5 } }");
  v1::ImageSpec spec =
      WithImageDefaults(Spec("train { random_resized_crop { height: 24 width: 20 } }"), 3);
  ImageDecoder decoder;
  Image image;
  Resampler resampler;
  std::set<Rows> flips;
  for (int i = 0; i < 40; ++i) {
    const SampleRef sample = {.epoch = i % 3, .sample = i};
    ASSERT_TRUE(decoder.Open(Bytes(file)).ok());
    ASSERT_TRUE(decoder.Decode({0, 0, 150, 110}, 3, image).ok());
    const Region crop = DrawResizedCrop(spec.train(0).random_resized_crop(), {150, 110},
                                        TransformDraws(1, sample, 0));
    ResampleOptions options = {.from = {crop.width, crop.height},
                               .to = {kWidth, kHeight},
                               .window = {0, 0, kWidth, kHeight}};
    bool is_flipped = TransformDraws(1, sample, 1).Uniform(0, 1) < 0.5;
    TransformDraws draws(1, sample, 2);
    if (draws.Uniform(0, 1) < 0.5) is_flipped = !is_flipped;
    const bool is_upside_down = draws.Uniform(0, 1) < 0.5;
    Rows plain(3 * kHeight * kWidth);
    resampler.Resample(options, ViewOf(image, crop.left, crop.top), plain.data());
    Rows flipped(plain.size());
    for (int row = 0; row < 3 * kHeight; ++row) {
      const int c = row / kHeight, y = row % kHeight;
      const int from = c * kHeight + (is_upside_down ? kHeight - 1 - y : y);
      for (int x = 0; x < kWidth; ++x) {
        flipped[row * kWidth + x] = plain[from * kWidth + (is_flipped ? kWidth - 1 - x : x)];
      }
    }
    EXPECT_EQ(Train(*maker, file, sample), flipped) << i;
  }
}

TEST(ImageMakerTest, ALaterTransformMovesNoEarlierDraw) {
  const std::string file = Photo();
  const std::string crop = "train { random_resized_crop { height: 24 width: 20 } }";
  const auto one = Maker(crop), two = Maker(crop + "train { color_jitter {} }"),
             three = Maker(crop + "train { rand_augment { magnitude: 3 } }");
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Train(*one, file, {0, i}), Train(*two, file, {0, i})) << "no factor changes a pixel";
    EXPECT_EQ(Train(*three, file, {0, i}), Train(*three, file, {0, i}));
  }
  EXPECT_NE(Train(*one, file, {0, 1}), Train(*one, file, {1, 1}));
  EXPECT_NE(Train(*one, file, {0, 1}), Train(*Maker(crop, 3, 2), file, {0, 1}));
}

TEST(ImageMakerTest, CropsAfterOtherTransforms) {
  const std::string file = Photo(60, 50);
  // The crop of a flipped image is the flip of the mirrored crop; padding is black.
  const auto maker = Maker(
      "train { random_flip { probability: 1 } } train { resize { height: 22 width: 18 } }"
      "train { random_crop { height: 24 width: 20 padding: 4 } }");
  std::set<Rows> results;
  for (int i = 0; i < 30; ++i) {
    const Rows rows = Train(*maker, file, {0, i});
    results.insert(rows);
    EXPECT_GE(std::count(rows.begin(), rows.end(), 0), 3 * (24 * 20 - 22 * 18));
  }
  EXPECT_GT(results.size(), 10);
  const auto flip_then_crop = Maker(
      "train { random_flip { probability: 1 } } train { center_crop { height: 24 width: 20 } }");
  const auto crop_then_flip = Maker(
      "train { center_crop { height: 24 width: 20 } } train { random_flip { probability: 1 } }");
  EXPECT_EQ(Train(*flip_then_crop, file, {}), Train(*crop_then_flip, file, {}));
}

TEST(ImageMakerTest, FastDecodingIsCloseToExactDecoding) {
  const std::string file = EncodeJpeg(Rows(400 * 480 * 3, 90), {.width = 400, .height = 480});
  const std::string resize = "train { resize { height: 24 width: 20 } }";
  const Rows exact = Train(*Maker(resize), file, {});
  const Rows fast = Train(*Maker(resize + "decode: IMAGE_DECODE_FAST"), file, {});
  EXPECT_LE(
      Difference(exact, absl::string_view(reinterpret_cast<const char*>(fast.data()), fast.size())),
      1);
  const std::string photo = Photo(401, 483);
  const auto crop =
      Maker("train { random_resized_crop { height: 24 width: 20 } } decode: IMAGE_DECODE_FAST");
  for (int i = 0; i < 50; ++i) Train(*crop, photo, {0, i});
}

TEST(ImageMakerTest, TurnsByExifOnlyIfAsked) {
  const std::string exif(
      "\xff\xe1\0\x22"
      "Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
      36);
  const std::string plain = Photo(24, 20);
  const std::string turned = plain.substr(0, 2) + exif + plain.substr(2);
  Rows rows(3 * kHeight * kWidth);
  const auto asked = Maker("use_exif_orientation: true");
  EXPECT_EQ(asked->Training(Bytes(turned), {}, absl::MakeSpan(rows)), absl::OkStatus());
  EXPECT_THAT(Maker("")->Training(Bytes(turned), {}, absl::MakeSpan(rows)).message(),
              HasSubstr("the image has 20 x 24 pixels after its transforms, but the model reads "
                        "24 x 20"));
  // The file's first column, from below, is the first row.
  const auto sideways = ImageMaker::Create(Spec(""), 1, 3, 20, 24);
  Rows before(rows.size());
  ASSERT_TRUE((*sideways)->Training(Bytes(plain), {}, absl::MakeSpan(before)).ok());
  for (int x = 0; x < kWidth; ++x) EXPECT_EQ(rows[x], before[(19 - x) * 24]);
}

TEST(ImageMakerTest, MakesGrayRows) {
  const std::string spec = "train { resize { height: 24 width: 20 } } train { rand_augment {} }";
  const auto maker = Maker(spec, 1);
  EXPECT_EQ(maker->values().size(), 1);
  EXPECT_EQ(maker->values()[0][255], 1.0f);
  for (int i = 0; i < 20; ++i) Train(*maker, Photo(), {0, i}, 1);
}

TEST(ImageMakerTest, RefusesWrongSpecsAndFiles) {
  EXPECT_THAT(ImageMaker::Create(Spec("train { center_crop { size: 5 } }"), 1, 3, 24, 20)
                  .status()
                  .message(),
              HasSubstr("data.image.train[0].center_crop.size"));
  Rows rows(3 * kHeight * kWidth);
  auto error = [&](const std::string& spec, absl::string_view file) {
    return std::string(Maker(spec)->Training(Bytes(file), {}, absl::MakeSpan(rows)).message());
  };
  EXPECT_THAT(error("", "GIF89a"), HasSubstr("a GIF file"));
  EXPECT_THAT(error("train { random_crop { height: 24 width: 20 } }", Photo(19, 40)),
              HasSubstr("an image of 40 x 19 pixels with a padding of 0 is smaller than the crop"));
  const std::string line = EncodeJpeg(Rows(3 * 60000), {.width = 60000, .height = 1});
  EXPECT_THAT(
      error("train { resize { size: 256 } } train { center_crop { height: 24 width: 20 } }", line),
      HasSubstr("cannot become one of 256 x 15360000"));
}

TEST(ImageMakerTest, CountsTheStages) {
  StageTimes times;
  StageTimes* const before = SetStageTimes(&times);
  Train(*Maker("train { resize { height: 24 width: 20 } } train { color_jitter { hue: 0.5 } }"),
        Photo(), {});
  SetStageTimes(before);
  for (InputStage stage : {InputStage::kDecode, InputStage::kResample, InputStage::kAugment}) {
    EXPECT_GT(times.nanoseconds[static_cast<int>(stage)], 0);
  }
}

TEST(ImageMakerTest, ThreadsMakeTheSameRows) {
  const auto maker = Maker(
      "train { random_resized_crop { height: 24 width: 20 } } train { random_flip {} }"
      "train { rand_augment {} }");
  const std::string file = Photo();
  std::vector<Rows> rows(4);
  std::vector<std::thread> threads;
  for (Rows& mine : rows) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) mine = Train(*maker, file, {0, i});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Rows& mine : rows) EXPECT_EQ(mine, rows[0]);
}

}  // namespace
}  // namespace muster::image_maker_test
