#include "lib/data/image/image_spec.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/status/field_fault.h"

namespace muster {
namespace {

constexpr int kSideMax = 16384;
constexpr int kTransformsMax = 32;
constexpr int kOperationsMax = 32;
constexpr int kBinsMax = 1000;
constexpr double kRatioMax = 1000;

// Collects faults of fields below a path.
class Faults {
 public:
  void Add(absl::string_view field, absl::string_view description) {
    faults_.push_back({absl::StrCat(path_, field), std::string(description)});
  }

  template <typename T>
  void CheckRange(absl::string_view field, T value, T least, T most) {
    if (value >= least && value <= most) return;  // false for NaN
    Add(field, absl::StrCat("must be from ", least, " to ", most, " (is ", value, ")"));
  }

  void set_path(std::string path) { path_ = std::move(path); }
  absl::Status ToStatus() const {
    return faults_.empty() ? absl::OkStatus() : FaultsToStatus(faults_);
  }

 private:
  std::string path_;
  std::vector<FieldFault> faults_;
};

template <typename T>
ImageSize SizeOf(const T& transform) {
  if (transform.size() != 0) return {transform.size(), transform.size()};
  return {transform.width(), transform.height()};
}

std::string ToString(const ImageSize& size) { return absl::StrCat(size.height, " x ", size.width); }

// Returns whether `size`, or `height` and `width`, are given and in their ranges.
template <typename T>
bool CheckSize(const T& transform, Faults& faults) {
  if (transform.size() != 0 && (transform.height() != 0 || transform.width() != 0)) {
    faults.Add("size", "excludes height and width; remove one or the other");
    return false;
  }
  if (transform.size() == 0 && transform.height() == 0 && transform.width() == 0) {
    faults.Add("size", "is required, or height and width");
    return false;
  }
  auto check = [&](absl::string_view field, int side) {
    if (side == 0) {
      faults.Add(field, "is required beside the other side");
    } else {
      faults.CheckRange(field, side, 1, kSideMax);
    }
    return side >= 1 && side <= kSideMax;
  };
  if (transform.size() != 0) return check("size", transform.size());
  const bool is_height_right = check("height", transform.height());
  return check("width", transform.width()) && is_height_right;
}

void CheckInterpolation(v1::Interpolation interpolation, Faults& faults) {
  if (v1::Interpolation_IsValid(interpolation)) return;
  faults.Add("interpolation", absl::StrCat("has the unknown value ", interpolation));
}

// Follows the size of an image through a list of transforms.
class TransformCheck {
 public:
  TransformCheck(Faults& faults, absl::string_view list, bool is_training)
      : faults_(faults), list_(list), is_training_(is_training) {}

  void Check(const v1::ImageTransform& transform, int index) {
    path_ = absl::StrCat("data.image.", list_, "[", index, "]");
    switch (transform.kind_case()) {
      case v1::ImageTransform::kResize:
        At("resize");
        CheckInterpolation(transform.resize().interpolation(), faults_);
        if (!CheckSize(transform.resize(), faults_)) return Forget();
        if (transform.resize().size() == 0) return Set(transform.resize());
        size_.reset();
        last_ = absl::StrCat(path_, ".size");
        has_shorter_side_only_ = true;
        return;
      case v1::ImageTransform::kRandomResizedCrop:
        AtRandom("random_resized_crop");
        return CheckResizedCrop(transform.random_resized_crop());
      case v1::ImageTransform::kCenterCrop:
        At("center_crop");
        return CheckSize(transform.center_crop(), faults_) ? Set(transform.center_crop())
                                                           : Forget();
      case v1::ImageTransform::kRandomCrop:
        AtRandom("random_crop");
        return CheckCrop(transform.random_crop());
      case v1::ImageTransform::kRandomFlip: {
        AtRandom("random_flip");
        const auto& flip = transform.random_flip();
        faults_.CheckRange("probability", flip.probability(), 0.0, 1.0);
        return faults_.CheckRange("vertical_probability", flip.vertical_probability(), 0.0, 1.0);
      }
      case v1::ImageTransform::kColorJitter: {
        AtRandom("color_jitter");
        const auto& jitter = transform.color_jitter();
        faults_.CheckRange("brightness", jitter.brightness(), 0.0, kRatioMax);
        faults_.CheckRange("contrast", jitter.contrast(), 0.0, kRatioMax);
        faults_.CheckRange("saturation", jitter.saturation(), 0.0, kRatioMax);
        return faults_.CheckRange("hue", jitter.hue(), 0.0, 0.5);
      }
      case v1::ImageTransform::kRandAugment:
        AtRandom("rand_augment");
        return CheckRandAugment(transform.rand_augment());
      case v1::ImageTransform::KIND_NOT_SET:
        faults_.set_path(path_);
        return faults_.Add("", "names no transform");
    }
  }

  // Compares the last size with the model's.
  void Finish(const ImageSize& model) {
    faults_.set_path("");
    if (has_shorter_side_only_) {
      faults_.Add(last_, absl::StrCat("gives images of different sizes; add center_crop after it, "
                                      "or give height and width (the model reads ",
                                      ToString(model), " pixels)"));
    } else if (size_.has_value() && *size_ != model) {
      faults_.Add(last_, absl::StrCat("the last size is ", ToString(*size_),
                                      " pixels, but the model reads ", ToString(model)));
    }
  }

 private:
  void At(absl::string_view kind) {
    absl::StrAppend(&path_, ".", kind);
    faults_.set_path(absl::StrCat(path_, "."));
  }

  void AtRandom(absl::string_view kind) {
    absl::StrAppend(&path_, ".", kind);
    faults_.set_path(path_);
    if (!is_training_) faults_.Add("", "is random, and evaluation is not; move it to train");
    faults_.set_path(absl::StrCat(path_, "."));
  }

  template <typename T>
  void Set(const T& transform) {
    size_ = SizeOf(transform);
    last_ = absl::StrCat(path_, transform.size() != 0     ? ".size"
                                : transform.height() != 0 ? ".height"
                                                          : ".width");
    has_shorter_side_only_ = false;
  }

  // A wrong size leaves the last size unknown, and one fault is enough.
  void Forget() {
    size_.reset();
    has_shorter_side_only_ = false;
  }

  void CheckResizedCrop(const v1::RandomResizedCrop& crop) {
    CheckInterpolation(crop.interpolation(), faults_);
    const double scale_min = crop.has_scale_min() ? crop.scale_min() : 0.08;
    const double scale_max = crop.has_scale_max() ? crop.scale_max() : 1;
    const double ratio_min = crop.has_ratio_min() ? crop.ratio_min() : 3.0 / 4;
    const double ratio_max = crop.has_ratio_max() ? crop.ratio_max() : 4.0 / 3;
    faults_.CheckRange("scale_max", scale_max, 1e-6, 1.0);
    faults_.CheckRange("scale_min", scale_min, 1e-6, std::min(1.0, scale_max));
    faults_.CheckRange("ratio_max", ratio_max, 1 / kRatioMax, kRatioMax);
    faults_.CheckRange("ratio_min", ratio_min, 1 / kRatioMax, std::min(kRatioMax, ratio_max));
    CheckSize(crop, faults_) ? Set(crop) : Forget();
  }

  void CheckCrop(const v1::RandomCrop& crop) {
    faults_.CheckRange("padding", crop.padding(), 0, kSideMax);
    if (!CheckSize(crop, faults_)) return Forget();
    const ImageSize to = SizeOf(crop);
    if (size_.has_value() && (size_->width + 2 * int64_t{crop.padding()} < to.width ||
                              size_->height + 2 * int64_t{crop.padding()} < to.height)) {
      faults_.Add("padding", absl::StrCat("is too small: the image has ", ToString(*size_),
                                          " pixels, the crop ", ToString(to)));
    }
    Set(crop);
  }

  void CheckRandAugment(const v1::RandAugment& augment) {
    CheckInterpolation(augment.interpolation(), faults_);
    const int bins = augment.has_magnitude_bins() ? augment.magnitude_bins() : 31;
    const int magnitude = augment.has_magnitude() ? augment.magnitude() : 9;
    if (augment.has_operations()) {
      faults_.CheckRange("operations", augment.operations(), 1, kOperationsMax);
    }
    faults_.CheckRange("magnitude_bins", bins, 2, kBinsMax);
    faults_.CheckRange("magnitude", magnitude, 0, bins - 1);
  }

  Faults& faults_;
  const absl::string_view list_;
  const bool is_training_;
  std::string path_;
  std::string last_;               // the field of the last size
  std::optional<ImageSize> size_;  // unknown: that of the file, or a fault
  bool has_shorter_side_only_ = false;
};

void CheckNumbers(const google::protobuf::RepeatedField<float>& numbers, absl::string_view field,
                  float least, int channels, Faults& faults) {
  if (!numbers.empty() && numbers.size() != channels) {
    faults.Add(field, absl::StrCat("has ", numbers.size(), " values, but the model reads ",
                                   channels, " channels"));
  }
  for (int i = 0; i < numbers.size(); ++i) {
    faults.CheckRange(absl::StrCat(field, "[", i, "]"), numbers[i], least, 1e6f);
  }
}

// Returns whether the images have one size after the transforms.
bool SetsSize(const google::protobuf::RepeatedPtrField<v1::ImageTransform>& transforms) {
  return std::ranges::any_of(transforms, [](const v1::ImageTransform& transform) {
    return transform.has_resize() || transform.has_random_resized_crop() ||
           transform.has_center_crop() || transform.has_random_crop();
  });
}

template <typename T>
void FillSize(T* transform) {
  if (transform->size() == 0) return;
  transform->set_height(transform->size());
  transform->set_width(transform->size());
}

template <typename T>
void FillInterpolation(T* transform, v1::Interpolation otherwise) {
  if (transform->interpolation() != v1::INTERPOLATION_UNSPECIFIED) return;
  transform->set_interpolation(otherwise);
}

void FillTransform(v1::ImageTransform* transform) {
  switch (transform->kind_case()) {
    case v1::ImageTransform::kResize:
      return FillInterpolation(transform->mutable_resize(), v1::INTERPOLATION_BILINEAR);
    case v1::ImageTransform::kRandomResizedCrop: {
      auto* const crop = transform->mutable_random_resized_crop();
      FillSize(crop);
      FillInterpolation(crop, v1::INTERPOLATION_BILINEAR);
      if (!crop->has_scale_min()) crop->set_scale_min(0.08);
      if (!crop->has_scale_max()) crop->set_scale_max(1);
      if (!crop->has_ratio_min()) crop->set_ratio_min(3.0 / 4);
      if (!crop->has_ratio_max()) crop->set_ratio_max(4.0 / 3);
      return;
    }
    case v1::ImageTransform::kCenterCrop:
      return FillSize(transform->mutable_center_crop());
    case v1::ImageTransform::kRandomCrop:
      return FillSize(transform->mutable_random_crop());
    case v1::ImageTransform::kRandomFlip: {
      auto* const flip = transform->mutable_random_flip();
      if (!flip->has_probability()) flip->set_probability(0.5);
      return;
    }
    case v1::ImageTransform::kRandAugment: {
      auto* const augment = transform->mutable_rand_augment();
      FillInterpolation(augment, v1::INTERPOLATION_NEAREST);
      if (!augment->has_operations()) augment->set_operations(2);
      if (!augment->has_magnitude()) augment->set_magnitude(9);
      if (!augment->has_magnitude_bins()) augment->set_magnitude_bins(31);
      return;
    }
    case v1::ImageTransform::kColorJitter:
    case v1::ImageTransform::KIND_NOT_SET:
      return;
  }
}

}  // namespace

absl::Status CheckImageSpec(const v1::ImageSpec& spec, int channels, int height, int width) {
  Faults faults;
  if (channels != 1 && channels != 3) {
    faults.Add("data.image",
               absl::StrCat("images have 1 or 3 channels, but the model reads ", channels));
  }
  auto check = [&](const auto& transforms, absl::string_view list, bool is_training) {
    if (transforms.size() > kTransformsMax) {
      faults.set_path("data.image.");
      faults.Add(list, absl::StrCat("has ", transforms.size(), " transforms; at most ",
                                    kTransformsMax, " are allowed"));
      return;
    }
    TransformCheck transform_check(faults, list, is_training);
    for (int i = 0; i < transforms.size(); ++i) transform_check.Check(transforms[i], i);
    transform_check.Finish({width, height});
  };
  check(spec.train(), "train", true);
  check(spec.evaluate(), "evaluate", false);
  faults.set_path("data.image.");
  CheckNumbers(spec.mean(), "mean", -1e6f, channels, faults);
  CheckNumbers(spec.std(), "std", 1e-6f, channels, faults);
  if (!v1::ImageDecode_IsValid(spec.decode())) {
    faults.Add("decode", absl::StrCat("has the unknown value ", spec.decode()));
  }
  return faults.ToStatus();
}

absl::Status CheckImageSizes(const v1::ImageSpec& spec, HeldOut held_out, int height, int width) {
  if (spec.train().empty() && spec.evaluate().empty()) return absl::OkStatus();
  Faults faults;
  faults.set_path("data.image.");
  const auto add = [&](absl::string_view list, absl::string_view images) {
    faults.Add(list, absl::StrCat("no transform sets the size, so ", images,
                                  " keep the size of their files, but the model reads ", height,
                                  " x ", width, " pixels; add resize: {height: ", height,
                                  ", width: ", width, "} to this list"));
  };
  if (!SetsSize(spec.train())) add("train", "images");
  if (held_out == HeldOut::kSome && !SetsSize(spec.evaluate())) add("evaluate", "held-out images");
  return faults.ToStatus();
}

v1::ImageSpec WithImageDefaults(v1::ImageSpec spec, int channels) {
  for (v1::ImageTransform& transform : *spec.mutable_train()) FillTransform(&transform);
  for (v1::ImageTransform& transform : *spec.mutable_evaluate()) FillTransform(&transform);
  if (spec.mean().empty()) spec.mutable_mean()->Resize(channels, 0);
  if (spec.std().empty()) spec.mutable_std()->Resize(channels, 1);
  if (spec.decode() == v1::IMAGE_DECODE_UNSPECIFIED) spec.set_decode(v1::IMAGE_DECODE_EXACT);
  return spec;
}

}  // namespace muster
