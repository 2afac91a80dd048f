#include "lib/data/file/data_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/data/data_fault.h"
#include "lib/file/regular_file.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int kTries = 3;

thread_local const ReadWatch* current_watch = nullptr;

}  // namespace

ReadWatch::ReadWatch(std::function<absl::Status()> on_read)
    : on_read_(std::move(on_read)), outer_(std::exchange(current_watch, this)) {}

ReadWatch::~ReadWatch() { current_watch = outer_; }

absl::Status CheckWatch() {
  return current_watch != nullptr ? current_watch->on_read_() : absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const DataFile>> DataFile::Open(const std::string& path,
                                                               absl::string_view field) {
  ASSIGN_OR_RETURN(const int descriptor, OpenDataFile(path, field));
  struct stat facts;
  if (fstat(descriptor, &facts) != 0) {
    const int error_number = errno;
    close(descriptor);
    return DataPathFault(field, path, error_number);
  }
  const int64_t modified_ns = int64_t{facts.st_mtim.tv_sec} * 1'000'000'000 + facts.st_mtim.tv_nsec;
  return absl::WrapUnique(
      new DataFile(path, std::string(field), descriptor, facts.st_size, modified_ns));
}

DataFile::~DataFile() { close(descriptor_); }

absl::StatusOr<int64_t> DataFile::ReadSome(int64_t offset, absl::Span<std::byte> to) const {
  CHECK_GE(offset, 0);
  RETURN_IF_ERROR(CheckWatch());
  int64_t done = 0;
  for (int failed = 0; done < std::ssize(to);) {
    const ssize_t got = pread(descriptor_, to.data() + done, to.size() - done, offset + done);
    if (got == 0) break;
    if (got > 0) {
      done += got;
    } else if (errno != EINTR && ++failed == kTries) {
      return WithReason(absl::UnavailableError(absl::StrCat(field_, ": ", PathFault(path_, errno),
                                                            ", at byte ", offset + done)),
                        "DATA_UNREADABLE");
    }
  }
  return done;
}

absl::Status DataFile::Read(int64_t offset, absl::Span<std::byte> to) const {
  ASSIGN_OR_RETURN(const int64_t done, ReadSome(offset, to));
  if (done == std::ssize(to)) return absl::OkStatus();
  return DataTruncated(field_, absl::StrCat(path_, ": ends at byte ", offset + done, ", before ",
                                            offset + std::ssize(to), "; it had ", bytes_,
                                            " bytes when it was opened"));
}

absl::StatusOr<std::string> DataFile::ReadFirst(int64_t bytes_max) const {
  std::string first(std::min(bytes_max, bytes_), '\0');
  auto* to = reinterpret_cast<std::byte*>(first.data());
  ASSIGN_OR_RETURN(const int64_t got, ReadSome(0, absl::MakeSpan(to, first.size())));
  first.resize(got);
  return first;
}

void DataFile::WillNeed(int64_t offset, int64_t bytes) const {
  // Linux reads no more for one call than it reads ahead, which is 128 KiB by default.
  constexpr int64_t kAtOnce = 128 << 10;
  for (const int64_t end = offset + bytes; offset < end; offset += kAtOnce) {
    posix_fadvise(descriptor_, offset, std::min(kAtOnce, end - offset), POSIX_FADV_WILLNEED);
  }
}

}  // namespace muster
