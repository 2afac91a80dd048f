// Fuzzes tar files: data of users that workers and the coordinator read.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "lib/data/format/tar.h"
#include "lib/data/format/tar_bytes.h"
#include "lib/status/status.h"
#include "tests/fuzz/fuzz_target.h"

namespace muster {
namespace {

// Returns a folder for this process only.
const std::string& Folder() {
  static const auto* const folder = [] {
    auto* path = new std::string(std::filesystem::temp_directory_path() / "tar_fuzz-XXXXXX");
    CHECK(mkdtemp(path->data()) != nullptr) << *path;
    atexit([] { std::filesystem::remove_all(Folder()); });
    return path;
  }();
  return *folder;
}

}  // namespace

bool FuzzOne(absl::string_view bytes) {
  const std::string path = Folder() + "/a.tar";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  const auto file = DataFile::Open(path, "tar");
  CHECK(file.ok()) << file.status();
  TarReader reader(*file, "tar");
  int64_t end = 0, number = -1;
  while (true) {
    const auto member = reader.Next();
    if (!member.ok()) {
      const std::string reason = ReasonOf(member.status());
      CHECK(reason == "DATA_DAMAGED" || reason == "DATA_TRUNCATED" || reason == "DATA_INVALID")
          << member.status();
      return false;
    }
    if (!*member) return true;
    const TarMember& found = **member;
    CHECK(found.offset >= end + 512 && found.bytes >= 0) << found.offset << " " << found.bytes;
    CHECK_LE(found.bytes, (*file)->bytes() - found.offset);
    CHECK_GT(found.number, number);
    end = found.offset + found.bytes;
    number = found.number;
  }
}

std::vector<std::string> FuzzSeeds() {
  const std::string small = TarMemberBytes("a.jpg", "12345") + TarMemberBytes("a.cls", "7");
  return {
      small + TarEnd(), TarMemberBytes("d/", "", '5') + small + TarEnd() + small + TarEnd(),
      TarMemberBytes("@", std::string(200, 'n'), 'L') + small + TarEnd(),
      TarMemberBytes("x", PaxRecord("path", "b") + PaxRecord("size", "5"), 'x') + small + TarEnd()};
}

int FuzzTestInputs() { return 3000; }

}  // namespace muster
