#include "lib/data/convert/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace muster {

absl::Status ExistsAlready(absl::string_view path) {
  return absl::AlreadyExistsError(
      absl::StrCat(path, ": exists already; give another path, or replace it with --force"));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path,
                                                               Overwrite overwrite) {
  struct stat facts;
  const bool exists = lstat(path.c_str(), &facts) == 0;
  if (exists && S_ISDIR(facts.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat(path, ": is a folder; give the path of a file"));
  }
  if (exists && overwrite == Overwrite::kRefuse) return ExistsAlready(path);
  const std::string unfinished = path + ".part";
  // A run that was killed may have left it. It may also be a link to another file.
  unlink(unfinished.c_str());
  const int descriptor =
      open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    const char* const remedy = errno == ENOENT ? "; make its folder first" : "";
    return absl::UnavailableError(
        absl::StrCat(unfinished, ": cannot be written: ", std::strerror(errno), remedy));
  }
  return absl::WrapUnique(new OutputFile(path, descriptor));
}

OutputFile::~OutputFile() {
  close(descriptor_);
  if (!committed_) unlink(unfinished().c_str());
}

absl::Status OutputFile::Fault(int error_number) const {
  return absl::UnavailableError(
      absl::StrCat(unfinished(), ": cannot be written: ", std::strerror(error_number)));
}

absl::Status OutputFile::Write(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Fault(errno);
    text.remove_prefix(count);
    bytes_ += count;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (fsync(descriptor_) != 0) return Fault(errno);
  if (rename(unfinished().c_str(), path_.c_str()) != 0) return Fault(errno);
  committed_ = true;
  return absl::OkStatus();
}

}  // namespace muster
