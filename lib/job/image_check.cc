#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/repeated_field.h"
#include "lib/job/source_check.h"

namespace muster {
namespace {

constexpr int kTransformsMax = 32;
constexpr int kGrayChannels = 1, kColorChannels = 3;

using Transforms = google::protobuf::RepeatedPtrField<v1::ImageTransform>;

void CheckTransforms(const Transforms& transforms, const std::string& field, FieldChecks& faults) {
  if (transforms.size() > kTransformsMax) {
    faults.Add(field, absl::StrCat("at most ", kTransformsMax, " (has ", transforms.size(), ")"));
    return;
  }
  for (int i = 0; i < transforms.size(); ++i) {
    if (transforms[i].kind_case() != v1::ImageTransform::KIND_NOT_SET) continue;
    faults.Add(absl::StrCat(field, "[", i, "]"),
               "required: one of resize, random_resized_crop, center_crop, random_crop, "
               "random_flip, color_jitter, rand_augment");
  }
}

// Returns whether the values are one for each channel, or none.
bool CheckChannels(const google::protobuf::RepeatedField<float>& values, const std::string& field,
                   FieldChecks& faults) {
  if (values.empty() || values.size() == kGrayChannels || values.size() == kColorChannels) {
    return true;
  }
  faults.Add(field, absl::StrCat("must have a value for each channel, so 1 or 3 (has ",
                                 values.size(), ")"));
  return false;
}

// Pixels are 0 to 1 when `mean` is subtracted, so a mean of bytes would leave one value of all.
void CheckUnit(float value, int most, const std::string& field, FieldChecks& faults) {
  if (!std::isfinite(value) || value <= most) return;
  faults.Add(field, absl::StrCat("must be at most ", most, ", because pixels are 0 to 1 (is ",
                                 value, "); divide a value for 0 to 255 by 255"));
}

}  // namespace

void CheckImage(const v1::ImageSpec& image, const std::string& field, FieldChecks& faults) {
  CheckTransforms(image.train(), field + ".train", faults);
  CheckTransforms(image.evaluate(), field + ".evaluate", faults);
  const bool good_mean = CheckChannels(image.mean(), field + ".mean", faults);
  const bool good_std = CheckChannels(image.std(), field + ".std", faults);
  if (!good_mean || !good_std) return;
  if (!image.mean().empty() && !image.std().empty() && image.mean_size() != image.std_size()) {
    faults.Add(field + ".std", absl::StrCat("must have as many values as mean (has ",
                                            image.std_size(), ", mean ", image.mean_size(), ")"));
  }
  for (int i = 0; i < image.mean_size(); ++i) {
    const std::string mean = absl::StrCat(field, ".mean[", i, "]");
    faults.Finite(mean, image.mean(i));
    CheckUnit(image.mean(i), 1, mean, faults);
  }
  for (int i = 0; i < image.std_size(); ++i) {
    const std::string std = absl::StrCat(field, ".std[", i, "]");
    if (faults.Positive(std, image.std(i), "values are divided by it")) {
      CheckUnit(image.std(i), 10, std, faults);
    }
  }
  if (!v1::ImageDecode_IsValid(image.decode())) {
    faults.Add(field + ".decode",
               absl::StrCat("must be exact or fast (is number ", image.decode(), ")"));
  }
}

}  // namespace muster
