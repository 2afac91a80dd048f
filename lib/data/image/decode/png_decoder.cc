#include "lib/data/image/decode/png_decoder.h"

#include <png.h>

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/status/status.h"

namespace muster {
namespace {

// Reads one file. Header() and Rows() return false if libpng fails, and `message` says why. Errors
// jump to their beginning, so they have no objects with destructors.
class PngReader {
 public:
  explicit PngReader(absl::Span<const std::byte> file) : bytes_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, Fail, Ignore);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  absl::StatusOr<ImageSize> Open() {
    if (png_ == nullptr || info_ == nullptr) return absl::ResourceExhaustedError("PNG: no memory");
    if (!Header()) return Error();
    const int64_t width = png_get_image_width(png_, info_);
    const int64_t height = png_get_image_height(png_, info_);
    if (width > kImagePixelsMax / height) {
      return absl::InvalidArgumentError(
          absl::StrCat("PNG: ", width, " x ", height, " pixels are more than ", kImagePixelsMax));
    }
    return ImageSize{static_cast<int>(width), static_cast<int>(height)};
  }

  absl::Status Decode(int channels, Image& to) {
    ASSIGN_OR_RETURN(const ImageSize size, Open());
    const int color = png_get_color_type(png_, info_);
    const bool has_color = (color & PNG_COLOR_MASK_COLOR) != 0;
    const bool is_deep_gray = color == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png_, info_) == 16;
    const int decoded = has_color || channels == 3 ? 3 : 1;
    if (!Prepare(decoded == 3 && !has_color, is_deep_gray)) return Error();
    const size_t row_bytes = png_get_rowbytes(png_, info_);
    const size_t pixel_bytes = is_deep_gray ? 2 * decoded : decoded;
    if (row_bytes != pixel_bytes * size.width) return absl::InternalError("PNG: unexpected rows");
    uint8_t* const data =
        to.Reserve({.width = size.width, .height = size.height}, static_cast<int>(pixel_bytes));
    if (!Rows(data, row_bytes, size.height)) return Error();
    to.channels = decoded;
    if (is_deep_gray) {
      // Pillow does not scale these values to 8 bits. Values above 255 become white.
      const int64_t values = int64_t{size.width} * size.height * decoded;
      for (int64_t i = 0; i < values; ++i) data[i] = data[2 * i] != 0 ? 255 : data[2 * i + 1];
    }
    if (channels < decoded) ToLuminance(to);
    return absl::OkStatus();
  }

 private:
  static void Fail(png_structp png, png_const_charp message) {
    auto* const reader = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(reader->message_, sizeof(reader->message_), "%s", message);
    std::longjmp(reader->jump_, 1);
  }
  static void Ignore(png_structp, png_const_charp) {}
  static void Read(png_structp png, png_bytep to, size_t count) {
    auto* const reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > reader->bytes_.size() - reader->at_) png_error(png, "the file is cut off");
    std::memcpy(to, reader->bytes_.data() + reader->at_, count);
    reader->at_ += count;
  }

  bool Header() {
    if (setjmp(jump_) != 0) return false;
    png_set_read_fn(png_, this, Read);
    png_set_user_limits(png_, kImagePixelsMax, kImagePixelsMax);
    png_set_chunk_malloc_max(png_, 1 << 23);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
    png_read_info(png_, info_);
    return true;
  }

  bool Prepare(bool is_gray_to_rgb, bool is_deep_gray) {
    if (setjmp(jump_) != 0) return false;
    const int color = png_get_color_type(png_, info_);
    if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (color == PNG_COLOR_TYPE_GRAY && !is_deep_gray) png_set_expand_gray_1_2_4_to_8(png_);
    if (!is_deep_gray) png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    if (is_gray_to_rgb) png_set_gray_to_rgb(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool Rows(uint8_t* data, size_t row_bytes, int height) {
    if (setjmp(jump_) != 0) return false;
    for (int pass = 0; pass < passes_; ++pass) {
      for (int y = 0; y < height; ++y) png_read_row(png_, data + y * row_bytes, nullptr);
    }
    png_read_end(png_, nullptr);
    return true;
  }

  absl::Status Error() const { return absl::InvalidArgumentError(absl::StrCat("PNG: ", message_)); }

  const absl::Span<const std::byte> bytes_;
  size_t at_ = 0;
  int passes_ = 1;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  jmp_buf jump_;
  char message_[200] = "";
};

}  // namespace

absl::StatusOr<ImageSize> PngSize(absl::Span<const std::byte> file) {
  return PngReader(file).Open();
}

absl::Status DecodePng(absl::Span<const std::byte> file, int channels, Image& to) {
  return PngReader(file).Decode(channels, to);
}

}  // namespace muster
