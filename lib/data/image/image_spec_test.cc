#include "lib/data/image/image_spec.h"

#include <initializer_list>
#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace muster::image_spec_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::ImageSpec Spec(const std::string& text) {
  v1::ImageSpec spec;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &spec)) << text;
  return spec;
}

std::string ErrorOf(const std::string& text) {
  return std::string(CheckImageSpec(Spec(text), 3, 224, 224).message());
}

TEST(ImageSpecTest, TakesTheUsualRecipes) {
  EXPECT_EQ(CheckImageSpec(Spec(R"(
      train { random_resized_crop { size: 224 } }
      train { random_flip {} }
      train { rand_augment {} }
      train { color_jitter { brightness: 0.4 hue: 0.1 } }
      evaluate { resize { size: 256 } }
      evaluate { center_crop { size: 224 } }
      mean: [ 0.485, 0.456, 0.406 ]
      std: [ 0.229, 0.224, 0.225 ])"),
                           3, 224, 224),
            absl::OkStatus());
  EXPECT_EQ(CheckImageSpec(Spec(R"(
      train { random_crop { height: 32 width: 48 padding: 4 } }
      decode: IMAGE_DECODE_FAST)"),
                           1, 32, 48),
            absl::OkStatus());
  EXPECT_EQ(CheckImageSpec(Spec(""), 3, 32, 32), absl::OkStatus()) << "files may have this size";
}

TEST(ImageSpecTest, ComparesTheLastSizeWithTheModels) {
  EXPECT_THAT(ErrorOf("train { random_flip {} } train { center_crop { size: 200 } }"),
              HasSubstr("data.image.train[1].center_crop.size: the last size is 200 x 200 pixels, "
                        "but the model reads 224 x 224"));
  EXPECT_THAT(ErrorOf("evaluate { resize { height: 100 width: 224 } }"),
              HasSubstr("data.image.evaluate[0].resize.height: the last size is 100 x 224"));
  EXPECT_THAT(ErrorOf("evaluate { resize { size: 224 } }"),
              HasSubstr("data.image.evaluate[0].resize.size: gives images of different sizes"));
}

std::string SizeErrorOf(const std::string& text, HeldOut held_out) {
  return std::string(CheckImageSizes(Spec(text), held_out, 24, 32).message());
}

TEST(ImageSpecTest, EveryListSetsTheSize) {
  const std::string crop = "train { random_crop { height: 24 width: 32 } } ";
  const std::string resize = "evaluate { resize { height: 24 width: 32 } } ";
  EXPECT_EQ(SizeErrorOf(crop + "train { random_flip {} }", HeldOut::kNone), "");
  EXPECT_EQ(SizeErrorOf(crop + resize, HeldOut::kSome), "");
  EXPECT_EQ(SizeErrorOf("train { random_flip {} }", HeldOut::kNone),
            "data.image.train: no transform sets the size, so images keep the size of their files, "
            "but the model reads 24 x 32 pixels; add resize: {height: 24, width: 32} to this list");
  EXPECT_EQ(SizeErrorOf(crop, HeldOut::kSome),
            "data.image.evaluate: no transform sets the size, so held-out images keep the size of "
            "their files, but the model reads 24 x 32 pixels; add resize: {height: 24, width: 32} "
            "to this list");
  EXPECT_THAT(SizeErrorOf(resize, HeldOut::kSome), HasSubstr("data.image.train: no transform"));
  EXPECT_THAT(SizeErrorOf("train { color_jitter {} }", HeldOut::kSome),
              AllOf(HasSubstr("data.image.train: "), HasSubstr("data.image.evaluate: ")));
  for (const HeldOut held_out : {HeldOut::kNone, HeldOut::kSome}) {
    EXPECT_EQ(SizeErrorOf("mean: 0.5", held_out), "") << "files may have this size";
  }
}

TEST(ImageSpecTest, NamesEachWrongField) {
  struct Case {
    const char* spec;
    const char* error;
  };
  for (const Case& wrong : std::initializer_list<Case>{
           {"train {}", "data.image.train[0]: names no transform"},
           {"train { resize {} }", "data.image.train[0].resize.size: is required"},
           {"train { resize { size: 1 height: 2 } }", "train[0].resize.size: excludes height"},
           {"train { resize { size: -1 } }", "train[0].resize.size: must be from 1 to 16384"},
           {"train { resize { height: 5 } }",
            "train[0].resize.width: is required beside the other side"},
           {"train { random_resized_crop { size: 224 scale_min: 0 } }",
            "random_resized_crop.scale_min: must be from"},
           {"train { random_resized_crop { size: 224 scale_max: 1.5 } }",
            "random_resized_crop.scale_max: must be from"},
           {"train { random_resized_crop { size: 224 scale_min: 0.5 scale_max: 0.4 } }",
            "random_resized_crop.scale_min: must be from 1e-06 to 0.4 (is 0.5)"},
           {"train { random_resized_crop { size: 224 ratio_min: nan } }",
            "random_resized_crop.ratio_min: must be from"},
           {"train { random_crop { size: 224 padding: -1 } }",
            "train[0].random_crop.padding: must be from 0"},
           {"train { resize { height: 8 width: 8 } } train { random_crop { size: 224 } }",
            "train[1].random_crop.padding: is too small: the image has 8 x 8 pixels"},
           {"train { random_flip { probability: 1.5 } }",
            "train[0].random_flip.probability: must be from 0 to 1 (is 1.5)"},
           {"train { random_flip { vertical_probability: -1 } }",
            "train[0].random_flip.vertical_probability: must"},
           {"train { color_jitter { hue: 0.6 } }",
            "train[0].color_jitter.hue: must be from 0 to 0.5 (is 0.6)"},
           {"train { color_jitter { contrast: -1 } }", "color_jitter.contrast: must"},
           {"train { rand_augment { operations: 0 } }", "rand_augment.operations: must"},
           {"train { rand_augment { magnitude: 31 } }",
            "rand_augment.magnitude: must be from 0 to 30 (is 31)"},
           {"train { rand_augment { magnitude_bins: 1 magnitude: 0 } }",
            "rand_augment.magnitude_bins: must be from 2"},
           {"evaluate { random_flip {} }",
            "data.image.evaluate[0].random_flip: is random, and evaluation is not"},
           {"evaluate { random_resized_crop { size: 224 } }",
            "data.image.evaluate[0].random_resized_crop: is random"},
           {"mean: 0.5", "data.image.mean: has 1 values, but the model reads 3 channels"},
           {"std: [ 1, 0, 1 ]", "data.image.std[1]: must be from"},
           {"mean: [ 0, 0, inf ]", "data.image.mean[2]: must be from"}}) {
    EXPECT_THAT(ErrorOf(wrong.spec), HasSubstr(wrong.error)) << wrong.spec;
  }
}

TEST(ImageSpecTest, RefusesUnknownEnumsAndChannels) {
  v1::ImageSpec spec;
  spec.set_decode(static_cast<v1::ImageDecode>(9));
  spec.add_evaluate()->mutable_resize()->set_interpolation(static_cast<v1::Interpolation>(8));
  const std::string message(CheckImageSpec(spec, 4, 8, 8).message());
  EXPECT_THAT(message, HasSubstr("data.image.decode: has the unknown value 9"));
  EXPECT_THAT(message, HasSubstr("evaluate[0].resize.interpolation: has the unknown value 8"));
  EXPECT_THAT(message, HasSubstr("data.image: images have 1 or 3 channels"));
}

TEST(ImageSpecTest, LimitsTheNumberOfTransforms) {
  v1::ImageSpec spec;
  for (int i = 0; i < 33; ++i) spec.add_train()->mutable_random_flip();
  EXPECT_THAT(std::string(CheckImageSpec(spec, 3, 8, 8).message()),
              HasSubstr("data.image.train: has 33 transforms"));
}

TEST(ImageSpecTest, FillsDefaults) {
  const v1::ImageSpec spec = WithImageDefaults(
      Spec("train { random_resized_crop { size: 8 } } train { random_flip {} }"
           "train { rand_augment { magnitude: 0 } } evaluate { center_crop { size: 5 } }"),
      3);
  const auto& crop = spec.train(0).random_resized_crop();
  EXPECT_EQ(crop.height(), 8);
  EXPECT_EQ(crop.width(), 8);
  EXPECT_EQ(crop.scale_min(), 0.08);
  EXPECT_EQ(crop.ratio_max(), 4.0 / 3);
  EXPECT_EQ(crop.interpolation(), v1::INTERPOLATION_BILINEAR);
  EXPECT_EQ(spec.train(1).random_flip().probability(), 0.5);
  EXPECT_EQ(spec.train(2).rand_augment().operations(), 2);
  EXPECT_EQ(spec.train(2).rand_augment().magnitude(), 0);
  EXPECT_EQ(spec.train(2).rand_augment().interpolation(), v1::INTERPOLATION_NEAREST);
  EXPECT_EQ(spec.evaluate(0).center_crop().width(), 5);
  EXPECT_EQ(spec.mean_size(), 3);
  EXPECT_EQ(spec.std(2), 1);
}

}  // namespace
}  // namespace muster::image_spec_test
