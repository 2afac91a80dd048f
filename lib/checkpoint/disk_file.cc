#include "lib/checkpoint/disk_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "lib/file/regular_file.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr size_t kHashBytes = 1 << 20;  // bytes per read

class Sha256Sum {
 public:
  Sha256Sum() : context_(EVP_MD_CTX_new()) {
    CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  void Add(absl::Span<const std::byte> data) {
    CHECK(EVP_DigestUpdate(context_.get(), data.data(), data.size()) == 1);
  }

  std::string Hex() {
    std::string digest(32, '\0');
    CHECK(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                             nullptr) == 1);
    return absl::BytesToHexString(digest);
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

}  // namespace

absl::Status StorageError(const std::string& path, absl::string_view action, int error_number) {
  std::string why = std::generic_category().message(error_number);
  if (!why.empty()) why[0] = absl::ascii_tolower(why[0]);
  std::string message = absl::StrCat(path, ": ", action, ": ", why);
  const absl::StatusCode code = absl::ErrnoToStatusCode(error_number);
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) {
    absl::StrAppend(&message,
                    "; free space there, keep fewer checkpoints (checkpoint.keep_last) or ",
                    "give the coordinator a larger --state_dir");
    return WithReason(absl::ResourceExhaustedError(message), "STORAGE_FULL");
  }
  return WithReason(absl::Status(code, message), "STORAGE_FAILED");
}

absl::StatusOr<DiskFile> DiskFile::Open(const std::string& path, int flags,
                                        absl::string_view action) {
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor < 0) return StorageError(path, action, errno);
  return DiskFile(path, descriptor);
}

absl::StatusOr<DiskFile> DiskFile::OpenToRead(const std::string& path) {
  const OpenedFile opened = OpenRegularFile(path);
  if (opened.descriptor >= 0) return DiskFile(path, opened.descriptor);
  if (opened.error_number != 0) return StorageError(path, "open", opened.error_number);
  return WithReason(absl::FailedPreconditionError(absl::StrCat(path, ": is no regular file")),
                    "STORAGE_FAILED");
}

absl::StatusOr<DiskFile> DiskFile::CreateToWrite(const std::string& path) {
  return Open(path, O_RDWR | O_CREAT | O_EXCL, "create");
}

absl::StatusOr<DiskFile> DiskFile::CreateToWriteOnly(const std::string& path) {
  return Open(path, O_WRONLY | O_CREAT | O_EXCL, "create");
}

absl::StatusOr<DiskFile> DiskFile::OpenBeneath(const std::string& root, const std::string& path,
                                               int64_t length) {
  const int folder = open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return StorageError(root, "open folder", errno);
  absl::Cleanup close_folder = [&] { close(folder); };
  open_how how = {};
  // O_NONBLOCK: opening a pipe must not block
  how.flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  const long descriptor = syscall(SYS_openat2, folder, path.c_str(), &how, sizeof(how));
  const std::string whole = absl::StrCat(root, "/", path);
  if (descriptor < 0) return StorageError(whole, "open", errno);
  DiskFile file(whole, static_cast<int>(descriptor));
  struct stat facts;
  if (fstat(file.descriptor_, &facts) != 0) return StorageError(whole, "look at", errno);
  if (!S_ISREG(facts.st_mode) || facts.st_nlink != 1 || facts.st_size != length) {
    return absl::FailedPreconditionError(
        absl::StrCat(whole, ": is no plain file of ", length, " bytes under one name (it has ",
                     facts.st_size, " bytes and ", facts.st_nlink, " names)"));
  }
  return file;
}

DiskFile::DiskFile(DiskFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

DiskFile& DiskFile::operator=(DiskFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

DiskFile::~DiskFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<int64_t> DiskFile::Size() const {
  struct stat facts;
  if (fstat(descriptor_, &facts) != 0) return StorageError(path_, "size", errno);
  return facts.st_size;
}

absl::Status DiskFile::Reserve(int64_t bytes) {
  const std::string action = absl::StrCat("reserve ", bytes, " bytes");
  if (fallocate(descriptor_, /*mode=*/0, 0, bytes) == 0) return absl::OkStatus();
  if (errno != EOPNOTSUPP && errno != ENOSYS) return StorageError(path_, action, errno);
  // The fallback sets only the length; a later write may still find the device full.
  if (ftruncate(descriptor_, bytes) != 0) return StorageError(path_, action, errno);
  return absl::OkStatus();
}

absl::Status DiskFile::WriteAt(int64_t offset, absl::Span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t written = pwrite(descriptor_, data.data(), data.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return StorageError(path_, absl::StrCat("write ", data.size(), " bytes at ", offset),
                          written < 0 ? errno : EIO);
    }
    data.remove_prefix(written);
    offset += written;
  }
  return absl::OkStatus();
}

absl::Status DiskFile::ReadAt(int64_t offset, absl::Span<std::byte> data) const {
  while (!data.empty()) {
    const ssize_t got = pread(descriptor_, data.data(), data.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const std::string action = absl::StrCat("read ", data.size(), " bytes at ", offset);
      const int error_number = errno;
      const absl::Status error = StorageError(path_, action, error_number);
      if (error_number != EIO) return error;
      return WithReason(absl::DataLossError(error.message()), "STORAGE_FAILED");
    }
    if (got == 0) {
      return WithReason(absl::DataLossError(absl::StrCat(path_, ": ends at offset ", offset, ", ",
                                                         data.size(), " bytes short")),
                        "STORAGE_FAILED");
    }
    data.remove_prefix(got);
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status DiskFile::Sync() {
  if (fsync(descriptor_) != 0) return StorageError(path_, "sync", errno);
  return absl::OkStatus();
}

absl::StatusOr<std::string> DiskFile::Sha256(const std::function<bool()>& stop) const {
  ASSIGN_OR_RETURN(const int64_t bytes, Size());
  std::vector<std::byte> buffer(std::min<int64_t>(bytes, kHashBytes));
  Sha256Sum sum;
  for (int64_t offset = 0; offset < bytes; offset += buffer.size()) {
    if (stop && stop()) return absl::CancelledError(absl::StrCat(path_, ": no longer wanted"));
    auto part = absl::MakeSpan(buffer).first(std::min<int64_t>(buffer.size(), bytes - offset));
    RETURN_IF_ERROR(ReadAt(offset, part));
    sum.Add(part);
  }
  return sum.Hex();
}

std::string Sha256Of(absl::string_view text) {
  Sha256Sum sum;
  sum.Add({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  return sum.Hex();
}

}  // namespace muster
