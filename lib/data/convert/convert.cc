#include "lib/data/convert/convert.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "lib/data/convert/decompress.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/format/compression.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/npz.h"
#include "lib/data/format/tar_writer.h"
#include "lib/data/format/zip_writer.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kField[] = "IN";  // begins the messages about data
constexpr int64_t kCopyBytes = int64_t{1} << 20;
constexpr int64_t kImageBytesMax = int64_t{1} << 30;
constexpr absl::string_view kZipMagic = "PK\x03\x04";
constexpr std::array<absl::string_view, 4> kImageExtensions = {".jpg", ".jpeg", ".png", ".webp"};

// Appends bytes [offset, offset + bytes) of a file.
absl::Status Copy(const DataFile& from, int64_t offset, int64_t bytes, TakeBytes take) {
  std::string buffer;
  while (bytes > 0) {
    buffer.resize(std::min(bytes, kCopyBytes));
    auto* to = reinterpret_cast<std::byte*>(buffer.data());
    RETURN_IF_ERROR(from.Read(offset, absl::MakeSpan(to, buffer.size())));
    RETURN_IF_ERROR(take(buffer));
    offset += std::ssize(buffer);
    bytes -= std::ssize(buffer);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FirstBytes(const DataFile& file, int64_t bytes) {
  std::string first(std::min(bytes, file.bytes()), '\0');
  auto* to = reinterpret_cast<std::byte*>(first.data());
  RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(to, first.size())));
  return first;
}

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code fault;
  fs::create_directories(path, fault);
  if (!fault) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be made: ", fault.message()));
}

class Converter {
 public:
  explicit Converter(const ConvertOptions& options) : options_(options) {}

  const Converted& result() const { return result_; }

  absl::Status ConvertFile(const std::string& in, const std::string& out) {
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(in, kField));
    ASSIGN_OR_RETURN(const std::string first, FirstBytes(*file, 8));
    const Compression compression = CompressionOf(BytesOf(first));
    if (absl::StartsWith(first, kZipMagic)) return StoreArrays(in, out);
    if (compression == Compression::kGzip || compression == Compression::kZstd) {
      result_.kind = "decompressed";
      return WriteOne(*file, out, [&](OutputFile& output) {
        return Decompress(*file, compression,
                          [&](absl::string_view bytes) { return Append(output, bytes); });
      });
    }
    RETURN_IF_ERROR(CheckUncompressed(*file, kField));
    return DataInvalid(kField, absl::StrCat(in,
                                            ": is not compressed, so a job can read it as it "
                                            "is; gzip, zstd and .npz files can be converted"));
  }

  // Converts a folder with nothing but compressed files and .npz files, and its folders.
  absl::Status ConvertEach(const std::string& in, const std::vector<std::string>& names,
                           const std::string& out) {
    int64_t others = 0;
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(in, "/", name);
      ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kField));
      ASSIGN_OR_RETURN(const std::string first, FirstBytes(*file, 8));
      if (CompressionOf(BytesOf(first)) == Compression::kNone &&
          !absl::StartsWith(first, kZipMagic)) {
        ++others;
        continue;
      }
      absl::string_view stem = name;
      absl::ConsumeSuffix(&stem, ".gz") || absl::ConsumeSuffix(&stem, ".zst");
      const std::string to = absl::StrCat(out, "/", stem);
      RETURN_IF_ERROR(MakeFolder(fs::path(to).parent_path()));
      RETURN_IF_ERROR(ConvertFile(path, to));
    }
    if (result_.files > 0) return absl::OkStatus();
    return DataInvalid(
        kField, absl::StrCat(in, ": has ", others,
                             " files, but no gzip, zstd or .npz file, no folders of images, and "
                             "not only .npy files"));
  }

  absl::Status StackArrays(const std::string& in, const std::vector<std::string>& names,
                           const std::string& out) {
    result_.kind = "stacked arrays";
    ASSIGN_OR_RETURN(const auto output, OutputFile::Create(out, options_.overwrite));
    NpyHeader first;
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(in, "/", name);
      ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kField));
      RETURN_IF_ERROR(CheckUncompressed(*file, kField));
      ASSIGN_OR_RETURN(const std::string bytes, FirstBytes(*file, kNpyFirstBytes));
      ASSIGN_OR_RETURN(const NpyHeader header,
                       ReadNpyHeader(BytesOf(bytes), file->bytes(), path, kField));
      if (result_.files == 0) {
        first = header;
        std::vector<int64_t> shape = header.shape;
        shape.insert(shape.begin(), std::ssize(names));
        RETURN_IF_ERROR(Append(*output, MakeNpyHeader(header.type, shape)));
      }
      if (header.type != first.type || header.shape != first.shape) {
        return DataInvalid(
            kField, absl::StrCat(path, ": ", NpyTypeName(header.type), "[",
                                 absl::StrJoin(header.shape, ", "), "], but ", names[0], " is ",
                                 NpyTypeName(first.type), "[", absl::StrJoin(first.shape, ", "),
                                 "]; all samples need one type and shape"));
      }
      RETURN_IF_ERROR(Copy(*file, header.data_offset, header.data_bytes,
                           [&](absl::string_view piece) { return Append(*output, piece); }));
      CountRead(*file);
    }
    return Commit(*output);
  }

  // `names` are "CLASS/FILE" of images.
  absl::Status MakeShards(const std::string& in, std::vector<std::string> names,
                          const std::string& out) {
    result_.kind = "tar shards";
    std::vector<std::string> classes;
    for (const std::string& name : names) classes.push_back(name.substr(0, name.find('/')));
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    RETURN_IF_ERROR(MakeFolder(out));
    // Neighbours in a shard are read together if a job shuffles by blocks, so classes are mixed.
    std::mt19937_64 random(names.size());
    for (size_t i = names.size(); i > 1; --i) std::swap(names[i - 1], names[random() % i]);
    std::unique_ptr<OutputFile> shard;
    for (size_t i = 0; i < names.size(); ++i) {
      if (shard == nullptr) {
        const std::string path = absl::StrFormat("%s/shard-%06d.tar", out, result_.files_written);
        ASSIGN_OR_RETURN(shard, OutputFile::Create(path, options_.overwrite));
      }
      const std::string& name = names[i];
      const auto number =
          std::lower_bound(classes.begin(), classes.end(), name.substr(0, name.find('/'))) -
          classes.begin();
      RETURN_IF_ERROR(AddImage(in, name, absl::StrFormat("%09d", i), number, *shard));
      if (shard->bytes() >= options_.shard_bytes || i + 1 == names.size()) {
        RETURN_IF_ERROR(Append(*shard, TarEnd()));
        RETURN_IF_ERROR(Commit(*shard));
        shard = nullptr;
      }
    }
    ASSIGN_OR_RETURN(const auto list,
                     OutputFile::Create(absl::StrCat(out, "/classes.txt"), options_.overwrite));
    RETURN_IF_ERROR(Append(*list, absl::StrJoin(classes, "\n") + "\n"));
    return Commit(*list);
  }

 private:
  absl::Status StoreArrays(const std::string& in, const std::string& out) {
    result_.kind = "stored arrays";
    ASSIGN_OR_RETURN(const NpzFile npz, NpzFile::Open(in, kField));
    return WriteOne(*npz.file(), out, [&](OutputFile& output) -> absl::Status {
      ZipWriter writer;
      const auto append = [&](absl::string_view bytes) { return Append(output, bytes); };
      for (const ZipMember& member : npz.members()) {
        ASSIGN_OR_RETURN(const int64_t offset, npz.ContentOffset(member, kField));
        RETURN_IF_ERROR(append(writer.Next(member.name, member.crc, member.bytes)));
        if (member.is_deflated()) {
          RETURN_IF_ERROR(
              Inflate(*npz.file(), offset, member.stored_bytes, member.bytes, member.crc, append));
        } else if (member.is_stored() && member.bytes == member.stored_bytes) {
          RETURN_IF_ERROR(Copy(*npz.file(), offset, member.bytes, append));
        } else {
          return DataInvalid(kField,
                             absl::StrCat(in, ": member ", member.name, " is compressed by method ",
                                          member.method, "; known are 0 and 8"));
        }
      }
      return append(writer.End());
    });
  }

  template <typename WriteContent>
  absl::Status WriteOne(const DataFile& in, const std::string& out, WriteContent write) {
    ASSIGN_OR_RETURN(const auto output, OutputFile::Create(out, options_.overwrite));
    RETURN_IF_ERROR(write(*output));
    CountRead(in);
    return Commit(*output);
  }

  void CountRead(const DataFile& file) {
    ++result_.files;
    result_.bytes_read += file.bytes();
  }

  absl::Status Append(OutputFile& output, absl::string_view bytes) {
    RETURN_IF_ERROR(output.Write(bytes));
    result_.bytes_written += bytes.size();
    options_.progress(result_.bytes_written);
    return absl::OkStatus();
  }

  absl::Status Commit(OutputFile& output) {
    RETURN_IF_ERROR(output.Commit());
    ++result_.files_written;
    return absl::OkStatus();
  }

  absl::Status AddImage(const std::string& in, const std::string& name, const std::string& key,
                        int64_t number, OutputFile& shard) {
    const std::string path = absl::StrCat(in, "/", name);
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kField));
    if (file->bytes() > kImageBytesMax) {
      return DataInvalid(kField, absl::StrCat(path, ": ", file->bytes(),
                                              " bytes, an image has at "
                                              "most ",
                                              kImageBytesMax));
    }
    const std::string extension = absl::AsciiStrToLower(fs::path(name).extension().string());
    RETURN_IF_ERROR(Append(shard, TarHeader(key + extension, file->bytes())));
    RETURN_IF_ERROR(Copy(*file, 0, file->bytes(),
                         [&](absl::string_view piece) { return Append(shard, piece); }));
    RETURN_IF_ERROR(Append(shard, TarPadding(file->bytes())));
    const std::string label = absl::StrCat(number);
    RETURN_IF_ERROR(Append(shard, TarHeader(key + ".cls", label.size())));
    RETURN_IF_ERROR(Append(shard, label + TarPadding(label.size())));
    CountRead(*file);
    return absl::OkStatus();
  }

  const ConvertOptions& options_;
  Converted result_;
};

bool IsImage(const std::string& name) {
  return std::any_of(kImageExtensions.begin(), kImageExtensions.end(),
                     [&](absl::string_view end) { return absl::EndsWithIgnoreCase(name, end); });
}

// Returns the relative names of all files below a folder, sorted.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  RETURN_IF_ERROR(VisitFiles(folder, kField, {.is_recursive = true},
                             [&](absl::string_view name, int64_t, int64_t) {
                               names.emplace_back(name);
                               return absl::OkStatus();
                             }));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<Converted> Convert(const std::string& in, const std::string& out,
                                  const ConvertOptions& options) {
  Converter converter(options);
  std::error_code fault;
  if (!fs::is_directory(in, fault)) {
    RETURN_IF_ERROR(converter.ConvertFile(in, out));
    return converter.result();
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(in));
  if (names.empty()) return DataInvalid(kField, absl::StrCat(in, ": has no file"));
  const bool has_only_arrays = std::all_of(
      names.begin(), names.end(), [](const auto& name) { return absl::EndsWith(name, ".npy"); });
  std::vector<std::string> images;
  for (const std::string& name : names) {
    if (IsImage(name) && absl::StrContains(name, "/")) images.push_back(name);
  }
  if (has_only_arrays) {
    RETURN_IF_ERROR(converter.StackArrays(in, names, out));
  } else if (!images.empty()) {
    RETURN_IF_ERROR(converter.MakeShards(in, std::move(images), out));
  } else {
    RETURN_IF_ERROR(converter.ConvertEach(in, names, out));
  }
  return converter.result();
}

}  // namespace muster
