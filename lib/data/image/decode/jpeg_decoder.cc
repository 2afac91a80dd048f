#include "lib/data/image/decode/jpeg_decoder.h"

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/status/status.h"
// These need <cstdio>.
#include "jerror.h"
#include "jpeglib.h"

namespace muster {
namespace {

constexpr int kRowsAtOnce = 16;
constexpr int kExifMarker = JPEG_APP0 + 1;

// Pillow ignores these warnings, and the pixels are whole.
bool IsHarmless(int warning) {
  return warning == JWRN_EXTRANEOUS_DATA || warning == JWRN_JFIF_MAJOR ||
         warning == JWRN_ADOBE_XFORM || warning == JWRN_TOO_MUCH_DATA;
}

// Returns the number of `bytes` bytes at `at`, or 0 behind the end.
uint32_t NumberAt(absl::string_view exif, size_t at, int bytes, bool is_big_endian) {
  if (at > exif.size() || exif.size() - at < static_cast<size_t>(bytes)) return 0;
  uint32_t number = 0;
  for (int i = 0; i < bytes; ++i) {
    const int shift = 8 * (is_big_endian ? bytes - 1 - i : i);
    number |= uint32_t{static_cast<uint8_t>(exif[at + i])} << shift;
  }
  return number;
}

// Returns the tag 0x0112 of the first directory of a TIFF block.
int OrientationOf(absl::string_view tiff) {
  const bool is_big_endian = tiff.substr(0, 2) == "MM";
  if (!is_big_endian && tiff.substr(0, 2) != "II") return 1;
  const size_t directory = NumberAt(tiff, 4, 4, is_big_endian);
  const int entries = static_cast<int>(NumberAt(tiff, directory, 2, is_big_endian));
  for (int i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + size_t{12} * i;
    if (entry >= tiff.size()) break;
    if (NumberAt(tiff, entry, 2, is_big_endian) != 0x0112) continue;
    const int value = static_cast<int>(NumberAt(tiff, entry + 8, 2, is_big_endian));
    return value >= 1 && value <= 8 ? value : 1;
  }
  return 1;
}

// Returns a * b / 255, rounded, as Pillow does.
int MultiplyBytes(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

// Files store inverted ink, as Adobe does.
void CmykToRgb(uint8_t* to, const uint8_t* from, int pixels) {
  for (int i = 0; i < pixels; ++i, to += 3, from += 4) {
    const int white = from[3];
    for (int c = 0; c < 3; ++c) {
      to[c] = static_cast<uint8_t>(std::max(0, white - MultiplyBytes(255 - from[c], white)));
    }
  }
}

}  // namespace

struct JpegDecoder::State {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  jmp_buf jump;
  char message[JMSG_LENGTH_MAX];

  const uint8_t* file;
  unsigned long file_bytes;

  Region region;  // in: the pixels that are needed; out: those that Rows() gives
  bool is_whole;  // no part of the file can be skipped
  uint8_t* rows;  // of the region
  int64_t row_bytes;
  ByteBuffer converted;  // rows in the file's channels

  // The functions below return false if libjpeg fails, and `message` says why. Errors jump to their
  // beginning, so they have no objects with destructors.
  bool Header();
  bool Start();
  bool Rows();

  // Several scans refine the whole picture, so no part of it can be decoded alone.
  bool HasScans() { return info.progressive_mode || jpeg_has_multiple_scans(&info); }

  // Returns the memory that libjpeg takes for the coefficients of all scans.
  int64_t CoefficientBytes() {
    if (!HasScans()) return 0;
    int64_t bytes = 0;
    for (int c = 0; c < info.num_components; ++c) {
      const jpeg_component_info& component = info.comp_info[c];
      bytes += int64_t{component.width_in_blocks} * component.height_in_blocks * sizeof(JBLOCK);
    }
    return bytes;
  }

  absl::Status Error() {
    jpeg_abort_decompress(&info);
    return absl::InvalidArgumentError(absl::StrCat("JPEG: ", message));
  }

  static State* Of(j_common_ptr info) { return static_cast<State*>(info->client_data); }
  static void Fail(j_common_ptr info) {
    info->err->format_message(info, Of(info)->message);
    std::longjmp(Of(info)->jump, 1);
  }
  static void Warn(j_common_ptr info, int level) {
    if (level < 0 && !IsHarmless(info->err->msg_code)) Fail(info);
  }
  static void Print(j_common_ptr) {}
  static void CountScans(j_common_ptr info) {
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kScansMax) return;
    std::snprintf(Of(info)->message, sizeof(message), "more than %d scans", kScansMax);
    std::longjmp(Of(info)->jump, 1);
  }
};

bool JpegDecoder::State::Header() {
  if (setjmp(jump) != 0) return false;
  jpeg_abort_decompress(&info);
  jpeg_mem_src(&info, file, file_bytes);
  jpeg_save_markers(&info, kExifMarker, 0xffff);
  jpeg_read_header(&info, TRUE);
  return true;
}

// Chooses the part to decode. `region` grows, because libjpeg crops columns on the left at whole
// blocks, and because fancy upsampling reads one chroma sample beside a pixel. The first and last
// columns have no neighbour and differ from those of a full decode.
bool JpegDecoder::State::Start() {
  if (setjmp(jump) != 0) return false;
  jpeg_start_decompress(&info);
  if (is_whole) {
    region = {.width = static_cast<int>(info.output_width),
              .height = static_cast<int>(info.output_height)};
    return true;
  }
  const int margin = 2 * info.max_h_samp_factor;
  const int right =
      std::min(static_cast<int>(info.output_width), region.left + region.width + margin);
  JDIMENSION left = std::max(0, region.left - margin), width = right - left;
  if (left > 0 || width < info.output_width) jpeg_crop_scanline(&info, &left, &width);
  region.left = static_cast<int>(left);
  region.width = static_cast<int>(width);
  // libjpeg gives wrong rows after a second skip (libjpeg-turbo issue 915), so this is the only
  // one.
  if (region.top > 0) jpeg_skip_scanlines(&info, region.top);
  return true;
}

bool JpegDecoder::State::Rows() {
  if (setjmp(jump) != 0) return false;
  const int end = region.top + region.height;
  while (static_cast<int>(info.output_scanline) < end) {
    const int at = static_cast<int>(info.output_scanline) - region.top;
    const int count = std::min(kRowsAtOnce, region.height - at);
    JSAMPROW pointers[kRowsAtOnce];
    if (info.out_color_space == JCS_CMYK) {
      pointers[0] = converted.data();
      jpeg_read_scanlines(&info, pointers, 1);
      CmykToRgb(rows + at * row_bytes, converted.data(), region.width);
      continue;
    }
    for (int i = 0; i < count; ++i) pointers[i] = rows + (at + i) * row_bytes;
    jpeg_read_scanlines(&info, pointers, count);
  }
  jpeg_abort_decompress(&info);
  return true;
}

JpegDecoder::JpegDecoder() : state_(new State) {
  State& state = *state_;
  state.info.err = jpeg_std_error(&state.errors);
  state.errors.error_exit = State::Fail;
  state.errors.emit_message = State::Warn;
  state.errors.output_message = State::Print;
  state.info.client_data = &state;
  jpeg_create_decompress(&state.info);
  state.progress.progress_monitor = State::CountScans;
  state.info.progress = &state.progress;
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&state_->info); }

absl::StatusOr<ImageSize> JpegDecoder::Open(absl::Span<const std::byte> file) {
  State& state = *state_;
  state.file = reinterpret_cast<const uint8_t*>(file.data());
  state.file_bytes = file.size();
  if (!state.Header()) return state.Error();
  const ImageSize size = {static_cast<int>(state.info.image_width),
                          static_cast<int>(state.info.image_height)};
  if (int64_t{size.width} * size.height > kImagePixelsMax) {
    jpeg_abort_decompress(&state.info);
    return absl::InvalidArgumentError(absl::StrCat("JPEG: ", size.width, " x ", size.height,
                                                   " pixels are more than ", kImagePixelsMax));
  }
  if (const int64_t bytes = state.CoefficientBytes(); bytes > kCoefficientBytesMax) {
    jpeg_abort_decompress(&state.info);
    return absl::InvalidArgumentError(absl::StrCat(
        "JPEG: the scans of ", size.width, " x ", size.height, " pixels take ", bytes,
        " bytes of memory, more than ", kCoefficientBytesMax, "; store it as a baseline JPEG"));
  }
  return size;
}

int JpegDecoder::Orientation() const {
  for (auto* marker = state_->info.marker_list; marker != nullptr; marker = marker->next) {
    const absl::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (marker->marker == kExifMarker && data.substr(0, 6) == absl::string_view("Exif\0\0", 6)) {
      return OrientationOf(data.substr(6));
    }
  }
  return 1;
}

absl::Status JpegDecoder::Decode(const Region& region, int channels, Image& to) {
  state_->info.scale_num = state_->info.scale_denom = 1;
  state_->is_whole = state_->HasScans();
  return Finish(region, channels, to);
}

absl::Status JpegDecoder::DecodeScaled(int denominator, int channels, Image& to) {
  state_->info.scale_num = 1;
  state_->info.scale_denom = denominator;
  state_->is_whole = true;
  return Finish({}, channels, to);
}

absl::Status JpegDecoder::Finish(const Region& region, int channels, Image& to) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  info.dct_method = JDCT_ISLOW;
  info.do_fancy_upsampling = TRUE;
  switch (info.jpeg_color_space) {
    case JCS_GRAYSCALE:
      info.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
      break;
    case JCS_RGB:
    case JCS_YCbCr:
      info.out_color_space = JCS_RGB;
      break;
    case JCS_CMYK:
    case JCS_YCCK:
      info.out_color_space = JCS_CMYK;
      break;
    default:
      jpeg_abort_decompress(&info);
      return absl::InvalidArgumentError(
          absl::StrCat("JPEG: ", info.num_components, " channels of an unknown color space"));
  }
  state.region = region;
  if (!state.Start()) return state.Error();
  const int decoded = info.out_color_space == JCS_GRAYSCALE ? 1 : 3;
  state.row_bytes = int64_t{state.region.width} * decoded;
  state.rows = to.Reserve(state.region, decoded);
  if (info.out_color_space == JCS_CMYK) state.converted.Reserve(int64_t{state.region.width} * 4);
  if (!state.Rows()) return state.Error();
  if (channels < decoded) ToLuminance(to);
  return absl::OkStatus();
}

}  // namespace muster
