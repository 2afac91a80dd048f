#include "lib/data/convert/decompress.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kInputBytes = int64_t{1} << 18;
constexpr int64_t kOutputBytes = int64_t{1} << 18;
constexpr int kGzipWindow = 15 + 16;  // a gzip header and a window of 32 KiB
constexpr int kRawWindow = -15;       // no header

// Reads [offset, end) of a file, piece by piece.
class FileBytes {
 public:
  FileBytes(const DataFile& file, int64_t offset, int64_t end)
      : file_(file), offset_(offset), end_(end), buffer_(kInputBytes, '\0') {}

  // Returns the next piece; empty at the end. Valid until the next call.
  absl::StatusOr<absl::string_view> Next() {
    const int64_t bytes = std::min(kInputBytes, end_ - offset_);
    auto* to = reinterpret_cast<std::byte*>(buffer_.data());
    RETURN_IF_ERROR(file_.Read(offset_, absl::MakeSpan(to, bytes)));
    offset_ += bytes;
    return absl::string_view(buffer_.data(), bytes);
  }

  absl::Status Damaged(absl::string_view message) const {
    return DataDamaged("IN", file_.path(), /*record=*/-1, offset_, message);
  }
  absl::Status Truncated(absl::string_view format) const {
    return DataTruncated("IN", absl::StrCat(file_.path(), ": the ", format, " stream ends early"));
  }

 private:
  const DataFile& file_;
  int64_t offset_;
  const int64_t end_;
  std::string buffer_;
};

struct EndInflate {
  void operator()(z_stream* stream) const {
    inflateEnd(stream);
    delete stream;
  }
};
using InflateStream = std::unique_ptr<z_stream, EndInflate>;

InflateStream StartInflate(int window) {
  auto stream = std::make_unique<z_stream>();
  CHECK_EQ(inflateInit2(stream.get(), window), Z_OK) << "out of memory";
  return InflateStream(stream.release());
}

enum class Members { kOne, kSeveral };

absl::Status InflateAll(FileBytes& input, z_stream& stream, Members members, TakeBytes take) {
  std::string output(kOutputBytes, '\0');
  bool is_complete = false;
  while (true) {
    ASSIGN_OR_RETURN(const absl::string_view piece, input.Next());
    if (piece.empty()) return is_complete ? absl::OkStatus() : input.Truncated("deflated");
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(piece.data()));
    stream.avail_in = piece.size();
    do {
      if (is_complete) {
        if (members == Members::kOne) return input.Damaged("bytes follow the deflated stream");
        inflateReset(&stream);
        is_complete = false;
      }
      stream.next_out = reinterpret_cast<Bytef*>(output.data());
      stream.avail_out = output.size();
      const int code = inflate(&stream, Z_NO_FLUSH);
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
        return input.Damaged(stream.msg == nullptr ? "the deflated stream is damaged" : stream.msg);
      }
      is_complete = code == Z_STREAM_END;
      RETURN_IF_ERROR(take(absl::string_view(output.data(), output.size() - stream.avail_out)));
    } while (stream.avail_in > 0 || (stream.avail_out == 0 && !is_complete));
  }
}

absl::Status DecompressZstd(FileBytes& input, TakeBytes take) {
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  const std::unique_ptr<ZSTD_DCtx, Free> context(ZSTD_createDCtx());
  CHECK(context != nullptr) << "out of memory";
  std::string output(kOutputBytes, '\0');
  size_t left = 0;  // 0: a frame is complete
  while (true) {
    ASSIGN_OR_RETURN(const absl::string_view piece, input.Next());
    if (piece.empty()) return left == 0 ? absl::OkStatus() : input.Truncated("zstd");
    ZSTD_inBuffer in = {piece.data(), piece.size(), 0};
    ZSTD_outBuffer out;
    do {
      out = {output.data(), output.size(), 0};
      left = ZSTD_decompressStream(context.get(), &out, &in);
      if (ZSTD_isError(left)) return input.Damaged(ZSTD_getErrorName(left));
      RETURN_IF_ERROR(take(absl::string_view(output.data(), out.pos)));
      // A further call after the end of a frame would begin the next one.
    } while (in.pos < in.size || (out.pos == out.size && left != 0));
  }
}

}  // namespace

absl::Status Decompress(const DataFile& file, Compression compression, TakeBytes take) {
  FileBytes input(file, 0, file.bytes());
  if (compression == Compression::kZstd) return DecompressZstd(input, take);
  CHECK(compression == Compression::kGzip);
  const InflateStream stream = StartInflate(kGzipWindow);
  return InflateAll(input, *stream, Members::kSeveral, take);
}

absl::Status Inflate(const DataFile& file, int64_t offset, int64_t stored_bytes, int64_t bytes,
                     uint32_t crc, TakeBytes take) {
  FileBytes input(file, offset, offset + stored_bytes);
  const InflateStream stream = StartInflate(kRawWindow);
  int64_t found = 0;
  uint32_t found_crc = 0;
  auto take_checked = [&](absl::string_view piece) -> absl::Status {
    found += piece.size();
    if (found > bytes) return input.Damaged(absl::StrCat("has more than its ", bytes, " bytes"));
    found_crc = crc32_z(found_crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    return take(piece);
  };
  RETURN_IF_ERROR(InflateAll(input, *stream, Members::kOne, take_checked));
  if (found != bytes) return input.Damaged(absl::StrCat(found, " of its ", bytes, " bytes"));
  if (found_crc != crc) return input.Damaged("the CRC differs");
  return absl::OkStatus();
}

}  // namespace muster
