// Fuzzes .npz files: archives from untrusted sources that workers read.
#include <zlib.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "lib/data/convert/convert.h"
#include "lib/data/format/npy.h"
#include "lib/data/format/npz.h"
#include "lib/data/format/zip_writer.h"
#include "lib/status/status.h"
#include "tests/fuzz/fuzz_file.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

std::string Zip(const std::vector<std::pair<std::string, std::string>>& members) {
  ZipWriter writer;
  std::string zip;
  for (const auto& [name, content] : members) {
    const auto* bytes = reinterpret_cast<const Bytef*>(content.data());
    absl::StrAppend(&zip, writer.Next(name, crc32_z(0, bytes, content.size()), content.size()),
                    content);
  }
  return zip + writer.End();
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  const std::string path = WriteFuzzFile("a.npz", bytes);
  const auto file = NpzFile::Open(path, "data");
  if (!file.ok()) {
    CHECK(!ReasonOf(file.status()).empty()) << file.status();
    return false;
  }
  // Convert() writes an archive that can be read.
  const std::string stored = path + ".stored";
  if (Convert(path, stored, {.overwrite = Overwrite::kReplace}).ok()) {
    const auto converted = NpzFile::Open(stored, "data");
    CHECK(converted.ok()) << converted.status();
  }
  bool has_array = false;
  for (const ZipMember& member : file->members()) {
    absl::string_view name = member.name;
    if (!absl::ConsumeSuffix(&name, ".npy")) continue;
    const auto array = file->Find(name, "data");
    if (!array.ok()) {
      CHECK(!ReasonOf(array.status()).empty()) << array.status();
      continue;
    }
    has_array = true;
    std::vector<std::byte> content(array->header.data_bytes);
    const absl::Status read =
        file->file()->Read(array->header.data_offset, absl::MakeSpan(content));
    CHECK(read.ok()) << read;
  }
  return has_array;
}

std::vector<std::string> FuzzSeeds() {
  const std::string bytes = MakeNpyHeader(NpyType::kU8, {3, 2}) + "123456";
  const std::string floats = MakeNpyHeader(NpyType::kF32, {2}) + "12345678";
  return {Zip({{"a.npy", bytes}, {"b/c.npy", floats}}),
          Zip({{"readme", "text"}, {"a.npy", bytes}})};
}

int FuzzTestInputs() { return 2'000; }

}  // namespace muster
