#include "lib/data/image/random_transforms.h"

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "lib/data/image/crop.h"
#include "lib/data/image/golden_cases.h"
#include "lib/data/image/image_spec.h"

namespace muster::random_transforms_test {
namespace {

TEST(RandomTransformsTest, HasTheMagnitudesOfTorchvision) {
  const std::map<std::string, AugmentOperation> operations = {
      {"Identity", AugmentOperation::kIdentity},
      {"ShearX", AugmentOperation::kShearX},
      {"ShearY", AugmentOperation::kShearY},
      {"TranslateX", AugmentOperation::kTranslateX},
      {"TranslateY", AugmentOperation::kTranslateY},
      {"Rotate", AugmentOperation::kRotate},
      {"Brightness", AugmentOperation::kBrightness},
      {"Color", AugmentOperation::kColor},
      {"Contrast", AugmentOperation::kContrast},
      {"Sharpness", AugmentOperation::kSharpness},
      {"Posterize", AugmentOperation::kPosterize},
      {"Solarize", AugmentOperation::kSolarize},
      {"AutoContrast", AugmentOperation::kAutoContrast},
      {"Equalize", AugmentOperation::kEqualize},
  };
  ASSERT_EQ(operations.size(), kAugmentOperations);
  for (const GoldenCase& golden : ReadGoldens("rand_augment.txt")) {
    const AugmentOperation operation = operations.at(golden.name);
    EXPECT_EQ(MagnitudeOf(operation, golden.Number("index"), golden.Number("bins"), 333, 224),
              golden.Real("magnitude"))
        << golden.name << " " << golden.Word("index") << " of " << golden.Word("bins");
    EXPECT_EQ(HasSign(operation), golden.Number("signed") == 1) << golden.name;
  }
}

TEST(RandomTransformsTest, DrawsDependOnEveryKey) {
  auto first = [](uint64_t seed, SampleRef sample, int transform) {
    return TransformDraws(seed, sample, transform).Uniform(0, 1);
  };
  const std::set<double> draws = {first(1, {0, 0}, 0), first(2, {0, 0}, 0), first(1, {1, 0}, 0),
                                  first(1, {0, 1}, 0), first(1, {0, 0}, 1)};
  EXPECT_EQ(draws.size(), 5);
  EXPECT_EQ(first(3, {4, 5}, 6), first(3, {4, 5}, 6));
}

TEST(RandomTransformsTest, DrawsAreUniform) {
  TransformDraws draws(1, {0, 0}, 0);
  std::vector<int> counts(5);
  for (int i = 0; i < 1000; ++i) ++counts[draws.Below(5)];
  for (int count : counts) EXPECT_NEAR(count, 200, 60);
}

TEST(RandomTransformsTest, ResizedCropsStayInTheImageAndKeepTheirLimits) {
  v1::ImageSpec spec;
  spec.add_train()->mutable_random_resized_crop()->set_size(224);
  const auto crop = WithImageDefaults(spec, 3).train(0).random_resized_crop();
  const ImageSize image = {500, 375};
  double area = 0;
  for (int i = 0; i < 1000; ++i) {
    const Region region = DrawResizedCrop(crop, image, TransformDraws(1, {0, i}, 0));
    ASSERT_GE(region.left, 0);
    ASSERT_GE(region.top, 0);
    ASSERT_LE(region.left + region.width, image.width);
    ASSERT_LE(region.top + region.height, image.height);
    const double ratio = static_cast<double>(region.width) / region.height;
    ASSERT_GT(ratio, 0.74);
    ASSERT_LT(ratio, 1.35);
    area += static_cast<double>(region.width) * region.height / (500 * 375);
  }
  EXPECT_NEAR(area / 1000, 0.435, 0.02);  // as measured in torchvision
  // No crop of the ratio fits: the middle.
  EXPECT_EQ(DrawResizedCrop(crop, {1000, 10}, TransformDraws(1, {0, 0}, 0)),
            (Region{.left = 493, .top = 0, .width = 13, .height = 10}));
  EXPECT_EQ(DrawResizedCrop(crop, {9, 1000}, TransformDraws(1, {0, 0}, 0)),
            (Region{.left = 0, .top = 494, .width = 9, .height = 12}));
}

TEST(RandomTransformsTest, CropsOfAFixedSize) {
  v1::RandomCrop crop;
  crop.set_height(32);
  crop.set_width(32);
  crop.set_padding(4);
  std::set<int> lefts;
  for (int i = 0; i < 500; ++i) {
    lefts.insert(DrawCrop(crop, {32, 32}, TransformDraws(1, {0, i}, 0)).left);
  }
  EXPECT_EQ(lefts.size(), 9);
  EXPECT_EQ(*lefts.begin(), -4);
  EXPECT_EQ(DrawCrop(crop, {23, 99}, TransformDraws(1, {0, 0}, 0)), Region());
  // Halves round to even numbers; a smaller image is padded.
  EXPECT_EQ(CenterRegion({7, 9}, {4, 4}), (Region{2, 2, 4, 4}));
  EXPECT_EQ(CenterRegion({5, 9}, {4, 4}), (Region{0, 2, 4, 4}));
  EXPECT_EQ(CenterRegion({3, 4}, {8, 4}), (Region{-2, 0, 8, 4}));
  EXPECT_EQ(WithShorterSide({500, 375}, 256), (ImageSize{341, 256}));
  EXPECT_EQ(WithShorterSide({375, 500}, 256), (ImageSize{256, 341}));
}

TEST(RandomTransformsTest, AugmentsByTheDrawsAlone) {
  v1::ImageSpec spec;
  spec.add_train()->mutable_rand_augment()->set_operations(3);
  const auto augment = WithImageDefaults(spec, 3).train(0).rand_augment();
  v1::ColorJitter jitter;
  jitter.set_brightness(0.4);
  jitter.set_hue(0.3);
  std::set<std::string> results;
  for (int i = 0; i < 40; ++i) {
    std::string bytes;
    for (int repeat = 0; repeat < 2; ++repeat) {
      Planes image, scratch;
      image.Reserve(20, 10, 3);
      for (int at = 0; at < 600; ++at) image.bytes.data()[at] = static_cast<uint8_t>(at * 7);
      RandAugmentImage(augment, TransformDraws(1, {0, i}, 0), image, scratch);
      JitterColors(jitter, TransformDraws(1, {0, i}, 1), image);
      const std::string result(reinterpret_cast<char*>(image.bytes.data()), 600);
      if (repeat == 1) {
        EXPECT_EQ(result, bytes);
      }
      bytes = result;
    }
    results.insert(bytes);
  }
  EXPECT_GT(results.size(), 35);
}

}  // namespace
}  // namespace muster::random_transforms_test
