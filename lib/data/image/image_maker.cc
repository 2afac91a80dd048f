#include "lib/data/image/image_maker.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/image/crop.h"
#include "lib/data/image/image_spec.h"
#include "lib/data/image/lazy_image.h"
#include "lib/data/image/random_transforms.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Returns the value of each byte as torchvision's ToTensor and Normalize compute it, in float.
kernels::ByteValues NormalizedBytes(float mean, float std) {
  kernels::ByteValues values;
  for (int i = 0; i < 256; ++i) values[i] = (static_cast<float>(i) / 255.0f - mean) / std;
  return values;
}

absl::Status ApplyResize(const v1::Resize& resize, LazyImage& image) {
  const ImageSize to = resize.size() != 0 ? WithShorterSide(image.size(), resize.size())
                                          : ImageSize{resize.width(), resize.height()};
  return image.Resize(to, FilterOf(resize.interpolation()));
}

absl::Status ApplyRandomCrop(const v1::RandomCrop& crop, TransformDraws draws, LazyImage& image) {
  const Region region = DrawCrop(crop, image.size(), draws);
  if (region.width == 0) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", image.size().height, " x ",
                                                   image.size().width, " pixels with a padding of ",
                                                   crop.padding(), " is smaller than the crop of ",
                                                   crop.height(), " x ", crop.width()));
  }
  return image.Crop(region);
}

absl::Status Apply(const v1::ImageTransform& transform, TransformDraws draws, LazyImage& image) {
  switch (transform.kind_case()) {
    case v1::ImageTransform::kResize:
      return ApplyResize(transform.resize(), image);
    case v1::ImageTransform::kRandomResizedCrop: {
      const auto& crop = transform.random_resized_crop();
      RETURN_IF_ERROR(image.Crop(DrawResizedCrop(crop, image.size(), draws)));
      return image.Resize({crop.width(), crop.height()}, FilterOf(crop.interpolation()));
    }
    case v1::ImageTransform::kCenterCrop: {
      const auto& crop = transform.center_crop();
      return image.Crop(CenterRegion(image.size(), {crop.width(), crop.height()}));
    }
    case v1::ImageTransform::kRandomCrop:
      return ApplyRandomCrop(transform.random_crop(), draws, image);
    case v1::ImageTransform::kRandomFlip: {
      const auto& flip = transform.random_flip();
      if (draws.Uniform(0, 1) < flip.probability()) image.FlipHorizontally();
      if (draws.Uniform(0, 1) < flip.vertical_probability()) image.FlipVertically();
      return absl::OkStatus();
    }
    case v1::ImageTransform::kColorJitter: {
      RETURN_IF_ERROR(image.Materialize());
      StageScope scope(InputStage::kAugment);
      JitterColors(transform.color_jitter(), draws, image.planes());
      return absl::OkStatus();
    }
    case v1::ImageTransform::kRandAugment: {
      RETURN_IF_ERROR(image.Materialize());
      StageScope scope(InputStage::kAugment);
      RandAugmentImage(transform.rand_augment(), draws, image.planes(), image.copy());
      return absl::OkStatus();
    }
    case v1::ImageTransform::KIND_NOT_SET:
      break;
  }
  LOG(FATAL) << "no transform; CheckImageSpec() refuses it";
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ImageMaker>> ImageMaker::Create(const v1::ImageSpec& spec,
                                                                     uint64_t seed, int channels,
                                                                     int height, int width) {
  RETURN_IF_ERROR(CheckImageSpec(spec, channels, height, width));
  return std::unique_ptr<const ImageMaker>(
      new ImageMaker(WithImageDefaults(spec, channels), seed, channels, height, width));
}

ImageMaker::ImageMaker(v1::ImageSpec spec, uint64_t seed, int channels, int height, int width)
    : spec_(std::move(spec)), seed_(seed), channels_(channels), height_(height), width_(width) {
  for (int c = 0; c < channels; ++c)
    values_.push_back(NormalizedBytes(spec_.mean(c), spec_.std(c)));
}

absl::Status ImageMaker::Training(absl::Span<const std::byte> file, SampleRef sample,
                                  absl::Span<uint8_t> to) const {
  return Make(file, spec_.train(), sample, to);
}

absl::Status ImageMaker::Evaluation(absl::Span<const std::byte> file,
                                    absl::Span<uint8_t> to) const {
  return Make(file, spec_.evaluate(), {}, to);
}

absl::Status ImageMaker::Make(absl::Span<const std::byte> file, const Transforms& transforms,
                              SampleRef sample, absl::Span<uint8_t> to) const {
  CHECK_EQ(static_cast<int64_t>(to.size()), int64_t{channels_} * height_ * width_);
  thread_local ImageScratch scratch;
  const absl::Cleanup trim = [] { scratch.Trim(); };
  LazyImage image(scratch, {.channels = channels_,
                            .is_fast = spec_.decode() == v1::IMAGE_DECODE_FAST,
                            .use_exif_orientation = spec_.use_exif_orientation()});
  RETURN_IF_ERROR(image.Open(file));
  for (int i = 0; i < transforms.size(); ++i) {
    RETURN_IF_ERROR(Apply(transforms[i], TransformDraws(seed_, sample, i), image));
  }
  if (image.size() != ImageSize{width_, height_}) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image has ", image.size().height, " x ", image.size().width,
                     " pixels after its transforms, but the model reads ", height_, " x ", width_,
                     "; add a resize or a crop to data.image"));
  }
  return image.Write(to.data());
}

}  // namespace muster
