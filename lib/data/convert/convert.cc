#include "lib/data/convert/convert.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "lib/data/convert/decompress.h"
#include "lib/data/data_fault.h"
#include "lib/data/file/data_file.h"
#include "lib/data/file/file_list.h"
#include "lib/data/format/compression.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/npz.h"
#include "lib/data/format/tar_writer.h"
#include "lib/data/format/zip_writer.h"
#include "lib/data/image/decode/sniff.h"
#include "lib/status/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kField[] = "IN";  // begins the messages about data
constexpr int64_t kCopyBytes = int64_t{1} << 20;
constexpr int64_t kImageBytesMax = int64_t{1} << 30;
constexpr absl::string_view kZipMagic = "PK\x03\x04";
constexpr int64_t kMagicBytes = 16;  // of a file, which name its format
constexpr absl::string_view kShardPrefix = "shard-", kShardSuffix = ".tar";

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

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// An image below the folder of its class.
struct ClassImage {
  std::string name;  // "CLASS/FILE"
  ImageFormat format;

  absl::string_view class_name() const { return absl::string_view(name).substr(0, name.find('/')); }
};

absl::string_view ExtensionOf(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return ".jpg";
    case ImageFormat::kPng:
      return ".png";
    case ImageFormat::kWebp:
      return ".webp";
  }
  LOG(FATAL) << "no image format";
}

std::string ShardName(int64_t number) {
  return absl::StrFormat("%s%06d%s", kShardPrefix, number, kShardSuffix);
}

// Returns the number of the shard with this name, or nullopt for another file.
std::optional<int64_t> ShardNumber(const std::string& name) {
  absl::string_view digits = name;
  int64_t number = 0;
  const bool is_shard = absl::ConsumePrefix(&digits, kShardPrefix) &&
                        absl::ConsumeSuffix(&digits, kShardSuffix) &&
                        absl::SimpleAtoi(digits, &number) && ShardName(number) == name;
  return is_shard ? std::optional(number) : std::nullopt;
}

// Returns the paths of the shards in a folder from `first` on.
absl::StatusOr<std::vector<std::string>> ShardsFrom(int64_t first, const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code fault;
  for (fs::directory_iterator entry(folder, fault), end; !fault && entry != end;
       entry.increment(fault)) {
    const auto number = ShardNumber(entry->path().filename().string());
    if (number && *number >= first) paths.push_back(entry->path().string());
  }
  if (fault) return absl::UnavailableError(absl::StrCat(folder, ": ", fault.message()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code fault;
  fs::create_directories(path, fault);
  if (!fault) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(path, ": cannot be made: ", fault.message(), "; give the path of a folder"));
}

// Returns INVALID_ARGUMENT if `out` is the folder `in` or lies in it.
absl::Status CheckOutside(const std::string& in, const std::string& out) {
  std::error_code fault;
  const fs::path from = fs::canonical(in, fault);
  if (fault) return absl::OkStatus();  // listing the folder says why
  const fs::path to = fs::weakly_canonical(out, fault);
  if (fault) return absl::OkStatus();
  if (std::mismatch(from.begin(), from.end(), to.begin(), to.end()).first != from.end()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(out, ": lies in ", in, ", which is converted; write to another folder"));
}

class Converter {
 public:
  explicit Converter(const ConvertOptions& options) : options_(options) {}

  const Converted& result() const { return result_; }

  absl::Status ConvertFile(const std::string& in, const std::string& out) {
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(in, kField));
    ASSIGN_OR_RETURN(const std::string first, file->ReadFirst(kMagicBytes));
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
    return DataInvalid(
        kField, absl::StrCat(in,
                             ": is not compressed, so there is nothing to convert; muster data "
                             "inspect tells whether a job can read it as it is"));
  }

  // Converts the compressed files and .npz files of a folder and of its folders.
  absl::Status ConvertEach(const std::string& in, const std::vector<std::string>& names,
                           const std::string& out) {
    absl::flat_hash_set<std::string> written;
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(in, "/", name);
      ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kField));
      ASSIGN_OR_RETURN(const std::string first, file->ReadFirst(kMagicBytes));
      if (CompressionOf(BytesOf(first)) == Compression::kNone &&
          !absl::StartsWith(first, kZipMagic)) {
        ++result_.files_left_out;
        continue;
      }
      const absl::string_view suffix = absl::EndsWith(name, ".gz") ? ".gz" : ".zst";
      std::string stem(absl::StripSuffix(name, suffix));  // one layer is decompressed
      if (absl::EndsWith(stem, ".tgz")) stem.replace(stem.size() - 3, 3, "tar");
      const std::string to = absl::StrCat(out, "/", stem);
      if (!written.insert(to).second) {
        return DataInvalid(kField, absl::StrCat(path, ": another file of the folder also becomes ",
                                                to, "; rename one of them"));
      }
      RETURN_IF_ERROR(MakeFolder(fs::path(to).parent_path()));
      RETURN_IF_ERROR(ConvertFile(path, to));
    }
    if (result_.files == 0) return NothingToConvert(in, names);
    result_.kind = "converted";
    return absl::OkStatus();
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
      ASSIGN_OR_RETURN(const std::string bytes, file->ReadFirst(kNpyFirstBytes));
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

  // `classes` are sorted. Each of the images lies in one of them.
  absl::Status MakeShards(const std::string& in, const std::vector<std::string>& classes,
                          std::vector<ClassImage> images, const std::string& out) {
    result_.kind = "tar shards";
    RETURN_IF_ERROR(MakeFolder(out));
    ASSIGN_OR_RETURN(const auto earlier, ShardsFrom(0, out));
    const bool may_replace = options_.overwrite == Overwrite::kReplace;
    if (!may_replace && !earlier.empty()) return ExistsAlready(earlier[0]);
    ASSIGN_OR_RETURN(const auto list,
                     OutputFile::Create(absl::StrCat(out, "/classes.txt"), options_.overwrite));
    // Neighbours in a shard are read together if a job shuffles by blocks, so classes are mixed.
    std::mt19937_64 random(images.size());
    for (size_t i = images.size(); i > 1; --i) std::swap(images[i - 1], images[random() % i]);
    std::unique_ptr<OutputFile> shard;
    for (size_t i = 0; i < images.size(); ++i) {
      if (shard == nullptr) {
        const std::string path = absl::StrCat(out, "/", ShardName(result_.files_written));
        ASSIGN_OR_RETURN(shard, OutputFile::Create(path, options_.overwrite));
      }
      const auto number = std::lower_bound(classes.begin(), classes.end(), images[i].class_name()) -
                          classes.begin();
      RETURN_IF_ERROR(AddImage(in, images[i], absl::StrFormat("%09d", i), number, *shard));
      if (shard->bytes() >= options_.shard_bytes || i + 1 == images.size()) {
        RETURN_IF_ERROR(Append(*shard, TarEnd()));
        RETURN_IF_ERROR(Commit(*shard));
        shard = nullptr;
      }
    }
    RETURN_IF_ERROR(RemoveShardsFrom(result_.files_written, out));
    RETURN_IF_ERROR(Append(*list, absl::StrJoin(classes, "\n") + "\n"));
    return Commit(*list);
  }

 private:
  static absl::Status NothingToConvert(const std::string& in,
                                       const std::vector<std::string>& names) {
    return DataInvalid(
        kField,
        absl::StrCat(in, ": has no gzip, zstd or .npz file; its first file is ", names[0],
                     ". To convert images, give each class a folder. To stack .npy files, move "
                     "other files out of the folder"));
  }

  // Removes the shards of an earlier conversion that the new ones did not replace.
  static absl::Status RemoveShardsFrom(int64_t first, const std::string& folder) {
    ASSIGN_OR_RETURN(const auto stale, ShardsFrom(first, folder));
    for (const std::string& path : stale) {
      std::error_code fault;
      fs::remove(path, fault);
      if (fault) {
        return absl::UnavailableError(absl::StrCat(
            path, ": an earlier conversion wrote it, and it cannot be removed: ", fault.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status StoreArrays(const std::string& in, const std::string& out) {
    result_.kind = "stored arrays";
    ASSIGN_OR_RETURN(const NpzFile npz, NpzFile::Open(in, kField));
    return WriteOne(*npz.file(), out, [&](OutputFile& output) -> absl::Status {
      ZipWriter writer;
      const auto append = [&](absl::string_view bytes) { return Append(output, bytes); };
      for (const ZipMember& member : npz.members()) {
        if (!absl::EndsWith(member.name, ".npy")) {
          return DataInvalid(kField, absl::StrCat(in, ": the member ", member.name,
                                                  " is no .npy file, so this is no .npz file; "
                                                  "unpack it with unzip"));
        }
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

  absl::Status AddImage(const std::string& in, const ClassImage& image, const std::string& key,
                        int64_t number, OutputFile& shard) {
    const std::string path = absl::StrCat(in, "/", image.name);
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kField));
    if (file->bytes() > kImageBytesMax) {
      return DataInvalid(kField, absl::StrCat(path, ": has ", file->bytes(),
                                              " bytes; an image has at most ", kImageBytesMax));
    }
    RETURN_IF_ERROR(
        Append(shard, TarHeader(absl::StrCat(key, ExtensionOf(image.format)), file->bytes())));
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

// Returns the images in the folders of `in`, found by their content. Empty if there are none.
// Returns DATA_INVALID if other files lie among them.
absl::StatusOr<std::vector<ClassImage>> FindImages(const std::string& in,
                                                   const std::vector<std::string>& names) {
  std::vector<ClassImage> images;
  int64_t others = 0;
  std::string first_other;
  const auto add_other = [&](absl::string_view path, absl::string_view fault) {
    if (others++ == 0) first_other = absl::StrCat(path, ": ", fault);
  };
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(in, "/", name);
    ASSIGN_OR_RETURN(const auto file, DataFile::Open(path, kField));
    ASSIGN_OR_RETURN(const std::string first, file->ReadFirst(kMagicBytes));
    const absl::StatusOr<ImageFormat> format = SniffImage(BytesOf(first));
    const bool has_class = absl::StrContains(name, "/");
    if (format.ok() && has_class) {
      images.push_back({name, *format});
    } else if (format.ok()) {
      add_other(path, "the image lies in no folder of a class");
    } else if (has_class) {
      add_other(path, format.status().message());
    }
  }
  if (images.empty() || others == 0) return images;
  return DataInvalid(
      kField,
      absl::StrCat(first_other, others > 1 ? absl::StrCat("; in all, ", others, " files") : "",
                   "; the folder of a class holds images alone, so move or remove "
                   "other files"));
}

// Returns the folders of classes, sorted. Each must have an image.
absl::StatusOr<std::vector<std::string>> ClassesOf(const std::string& in,
                                                   const std::vector<ClassImage>& images) {
  ASSIGN_OR_RETURN(std::vector<std::string> classes, ListFolders(in, kField));
  absl::flat_hash_set<absl::string_view> filled;
  for (const ClassImage& image : images) filled.insert(image.class_name());
  for (const std::string& name : classes) {
    if (filled.contains(name)) continue;
    return DataInvalid(kField, absl::StrCat(in, "/", name,
                                            ": the folder of a class has no file; remove it or "
                                            "fill it"));
  }
  return classes;
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
  RETURN_IF_ERROR(CheckOutside(in, out));
  ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(in));
  if (names.empty()) return DataInvalid(kField, absl::StrCat(in, ": has no file"));
  const bool has_only_arrays = std::all_of(
      names.begin(), names.end(), [](const auto& name) { return absl::EndsWith(name, ".npy"); });
  if (has_only_arrays) {
    RETURN_IF_ERROR(converter.StackArrays(in, names, out));
    return converter.result();
  }
  ASSIGN_OR_RETURN(std::vector<ClassImage> images, FindImages(in, names));
  if (images.empty()) {
    RETURN_IF_ERROR(converter.ConvertEach(in, names, out));
    return converter.result();
  }
  ASSIGN_OR_RETURN(const auto classes, ClassesOf(in, images));
  RETURN_IF_ERROR(converter.MakeShards(in, classes, std::move(images), out));
  return converter.result();
}

}  // namespace muster
