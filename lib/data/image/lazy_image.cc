#include "lib/data/image/lazy_image.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/data/stage_times.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kKeptBytes = int64_t{32} << 20;  // of each buffer
// How many pixels of a side may become one. The weights of a resize take memory in this proportion:
// a file of few bytes, with one row of 2^28 pixels, needed gigabytes. A JPEG file has at most
// 65,535 pixels a side, so it can become 32 pixels in any case.
constexpr int64_t kShrinkMax = 2048;

bool Contains(const ImageSize& size, const Region& region) {
  return region.left >= 0 && region.top >= 0 && region.width <= size.width - region.left &&
         region.height <= size.height - region.top;
}

Region WholeOf(const ImageSize& size) { return {.width = size.width, .height = size.height}; }

PixelView PartOf(const Planes& planes, const Region& region) {
  PixelView view = ViewOf(planes);
  view.data += region.top * view.row + region.left;
  return view;
}

}  // namespace

void ImageScratch::Trim() {
  decoded.bytes.Trim(kKeptBytes);
  planes.bytes.Trim(kKeptBytes);
  copy.bytes.Trim(kKeptBytes);
  resampler.Trim(kKeptBytes);
}

absl::Status LazyImage::Open(absl::Span<const std::byte> file) {
  {
    StageScope scope(InputStage::kDecode);
    ASSIGN_OR_RETURN(const ImageSize size, scratch_.decoder.Open(file));
    is_decoded_ = false;
    Reset(size);
  }
  if (!options_.use_exif_orientation) return absl::OkStatus();
  const int orientation = scratch_.decoder.Orientation();
  if (orientation == 1) return absl::OkStatus();
  RETURN_IF_ERROR(Materialize());
  Orient(scratch_.planes, orientation, scratch_.copy);
  Reset({scratch_.planes.width, scratch_.planes.height});
  return absl::OkStatus();
}

void LazyImage::Reset(const ImageSize& size) {
  size_ = resized_ = size;
  crop_ = window_ = WholeOf(size);
  is_resized_ = is_flipped_horizontally_ = is_flipped_vertically_ = false;
}

absl::Status LazyImage::Crop(const Region& region) {
  if (!Contains(size_, region)) return Pad(region);
  // Flips come last, so the region is mirrored before them.
  const int left =
      is_flipped_horizontally_ ? size_.width - region.left - region.width : region.left;
  const int top = is_flipped_vertically_ ? size_.height - region.top - region.height : region.top;
  size_ = {region.width, region.height};
  if (is_resized_) {
    window_ = {window_.left + left, window_.top + top, region.width, region.height};
  } else {
    crop_ = {crop_.left + left, crop_.top + top, region.width, region.height};
    resized_ = size_;
    window_ = WholeOf(size_);
  }
  return absl::OkStatus();
}

absl::Status LazyImage::Resize(const ImageSize& to, ResampleFilter filter) {
  if (to == size_) return absl::OkStatus();
  if (to.width < 1 || to.height < 1 || to.width > kImagePixelsMax / to.height) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", size_.height, " x ", size_.width,
                                                   " pixels cannot become one of ", to.height,
                                                   " x ", to.width));
  }
  if (size_.width > kShrinkMax * to.width || size_.height > kShrinkMax * to.height) {
    return absl::InvalidArgumentError(
        absl::StrCat("an image of ", size_.height, " x ", size_.width,
                     " pixels cannot become one of ", to.height, " x ", to.width,
                     "; a side shrinks to 1/", kShrinkMax, " at most, so crop the image first"));
  }
  if (is_resized_ || is_flipped_horizontally_ || is_flipped_vertically_) {
    RETURN_IF_ERROR(Materialize());
  }
  size_ = resized_ = to;
  window_ = WholeOf(to);
  filter_ = filter;
  is_resized_ = true;
  return absl::OkStatus();
}

absl::Status LazyImage::Materialize() {
  if (is_decoded_ && !is_resized_ && !is_flipped_horizontally_ && !is_flipped_vertically_ &&
      size_ == ImageSize{scratch_.planes.width, scratch_.planes.height}) {
    return absl::OkStatus();
  }
  scratch_.copy.Reserve(size_.width, size_.height, options_.channels);
  RETURN_IF_ERROR(Write(scratch_.copy.bytes.data()));
  std::swap(scratch_.planes, scratch_.copy);
  is_decoded_ = true;
  Reset(size_);
  return absl::OkStatus();
}

absl::Status LazyImage::Pad(const Region& region) {
  RETURN_IF_ERROR(Materialize());
  const Planes& from = scratch_.planes;
  Planes& to = scratch_.copy;
  to.Reserve(region.width, region.height, from.channels);
  std::memset(to.bytes.data(), 0, to.pixels() * to.channels);
  const int left = std::max(0, region.left), top = std::max(0, region.top);
  const int width = std::min(from.width, region.left + region.width) - left;
  const int height = std::min(from.height, region.top + region.height) - top;
  for (int c = 0; width > 0 && c < to.channels; ++c) {
    for (int y = 0; y < height; ++y) {
      std::memcpy(to.plane(c) + int64_t{top - region.top + y} * to.width + (left - region.left),
                  from.plane(c) + int64_t{top + y} * from.width + left, width);
    }
  }
  std::swap(scratch_.planes, scratch_.copy);
  Reset({region.width, region.height});
  return absl::OkStatus();
}

absl::Status LazyImage::Decode(const Region& region, PixelView& view) {
  StageScope scope(InputStage::kDecode);
  RETURN_IF_ERROR(scratch_.decoder.Decode(region, options_.channels, scratch_.decoded));
  const Region& decoded = scratch_.decoded.region;
  view = ViewOf(scratch_.decoded, region.left - decoded.left, region.top - decoded.top);
  return absl::OkStatus();
}

// Returns by how much a JPEG file may be reduced so that the crop still has as many pixels as the
// result.
int LazyImage::DenominatorFor(const ResampleOptions& options) const {
  if (!options_.is_fast || scratch_.decoder.format() != ImageFormat::kJpeg) return 1;
  for (int denominator : {8, 4, 2}) {
    if (options.from.width / denominator >= options.to.width &&
        options.from.height / denominator >= options.to.height) {
      return denominator;
    }
  }
  return 1;
}

absl::Status LazyImage::DecodeScaled(int denominator, ResampleOptions& options, PixelView& view) {
  StageScope scope(InputStage::kDecode);
  RETURN_IF_ERROR(scratch_.decoder.DecodeScaled(denominator, options_.channels, scratch_.decoded));
  const Region& decoded = scratch_.decoded.region;
  const int left = crop_.left / denominator, top = crop_.top / denominator;
  options.from = {std::min(crop_.width / denominator, decoded.width - left),
                  std::min(crop_.height / denominator, decoded.height - top)};
  const Region source = Resampler::Source(options);
  view = ViewOf(scratch_.decoded, left + source.left, top + source.top);
  return absl::OkStatus();
}

absl::Status LazyImage::Write(uint8_t* to) {
  ResampleOptions options = {.from = {crop_.width, crop_.height},
                             .to = resized_,
                             .window = window_,
                             .filter = filter_,
                             .is_flipped_horizontally = is_flipped_horizontally_,
                             .is_flipped_vertically = is_flipped_vertically_};
  Region source = Resampler::Source(options);
  source.left += crop_.left;
  source.top += crop_.top;
  PixelView view;
  if (is_decoded_) {
    view = PartOf(scratch_.planes, source);
  } else if (const int denominator = DenominatorFor(options); denominator > 1) {
    RETURN_IF_ERROR(DecodeScaled(denominator, options, view));
  } else {
    RETURN_IF_ERROR(Decode(source, view));
  }
  StageScope scope(InputStage::kResample);
  scratch_.resampler.Resample(options, view, to);
  return absl::OkStatus();
}

}  // namespace muster
