// Measures how fast the members of a tar file are found. The file should be in the page cache:
//   tar_benchmark FILE.tar
// Without a file it makes archives of small members in memory-backed storage.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/format/tar.h"
#include "lib/data/format/tar_bytes.h"

namespace muster {
namespace {

void Measure(const std::string& path) {
  const auto file = DataFile::Open(path, "tar");
  CHECK(file.ok()) << file.status();
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t start_cpu = std::clock();
    TarReader reader(*file, "tar");
    int64_t members = 0, bytes = 0;
    while (true) {
      const auto member = reader.Next();
      CHECK(member.ok()) << member.status();
      if (!*member) break;
      ++members;
      bytes += (*member)->bytes;
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double cpu_seconds = static_cast<double>(std::clock() - start_cpu) / CLOCKS_PER_SEC;
    std::printf("%lld members, %.3f GB in members: %.3f s, %.3f s of CPU, %.0f ns a member\n",
                static_cast<long long>(members), static_cast<double>(bytes) / 1e9, seconds.count(),
                cpu_seconds, seconds.count() * 1e9 / static_cast<double>(members));
  }
}

void MeasureMembersOf(int64_t member_bytes) {
  const std::string path = absl::StrCat("/dev/shm/tar_benchmark.", getpid());
  std::ofstream archive(path, std::ios::binary);
  const std::string bytes(member_bytes, 'x');
  for (int i = 0; i < 100'000; ++i) archive << TarMemberBytes(absl::StrCat(i, ".jpg"), bytes);
  archive << TarEnd();
  archive.close();
  std::printf("members of %lld bytes\n", static_cast<long long>(member_bytes));
  Measure(path);
  unlink(path.c_str());
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc > 1) {
    muster::Measure(argv[1]);
    return 0;
  }
  for (const int64_t bytes : {1, 1000, 3000, 5000, 20'000}) muster::MeasureMembersOf(bytes);
}
