#include "lib/file/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr int kFileFlags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
constexpr int kFolderFlags = O_PATH | O_DIRECTORY | O_CLOEXEC;
constexpr int kTries = 8;  // a rename beside the path can make a try fail

// Opens what a path without links names, in folder `root`. Returns a descriptor, or -1 and errno.
using OpenInRoot = int (*)(int root, const std::string& relative);

struct PathInRoot {
  std::string root;
  std::string relative;  // "": the root itself
};

// Compares the text only.
std::optional<PathInRoot> FindRoot(absl::Span<const std::string> roots, absl::string_view path) {
  for (const std::string& root : roots) {
    absl::string_view rest = path;
    if (!absl::ConsumePrefix(&rest, root)) continue;
    if (rest.empty() || root == "/" || absl::ConsumePrefix(&rest, "/")) {
      return PathInRoot{root, std::string(rest)};
    }
  }
  return std::nullopt;
}

// Returns a descriptor, or -1 and errno.
int OpenAt2(int folder, const std::string& relative, uint64_t resolve) {
  open_how how = {};
  how.flags = kFileFlags;
  how.resolve = resolve;
  int opened = -1;
  for (int i = 0; i < kTries; ++i) {
    opened = static_cast<int>(
        syscall(SYS_openat2, folder, relative.empty() ? "." : relative.c_str(), &how, sizeof(how)));
    if (opened >= 0 || errno != EAGAIN) break;  // EAGAIN: a rename interfered
  }
  return opened;
}

int OpenWithoutLinks(int root, const std::string& relative) {
  return OpenAt2(root, relative, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
}

int OpenByComponents(int root, const std::string& relative) {
  int folder = openat(root, ".", kFolderFlags);
  const fs::path path(relative.empty() ? "." : relative);
  for (auto part = path.begin(); folder >= 0 && part != path.end(); ++part) {
    const bool is_last = std::next(part) == path.end();
    const int next =
        openat(folder, part->c_str(), (is_last ? kFileFlags : kFolderFlags) | O_NOFOLLOW);
    const int error_number = errno;
    close(folder);
    folder = next;
    errno = error_number;
  }
  return folder;
}

// Resolves all links first, and then opens the result without following any.
OpenedFile OpenResolved(absl::Span<const std::string> roots, const std::string& path,
                        OpenInRoot open_in_root) {
  int descriptor = -1;
  for (int i = 0; i < kTries; ++i) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
    const auto found = error ? std::nullopt : FindRoot(roots, real.native());
    if (!found) return {.error_number = EXDEV};
    const int root = open(found->root.c_str(), kFolderFlags);
    if (root < 0) return {.error_number = errno};
    descriptor = open_in_root(root, found->relative);
    const int error_number = errno;
    close(root);
    errno = error_number;
    // There is a link now where there was none: resolve it as well.
    if (descriptor >= 0 || (errno != ELOOP && errno != ENOTDIR)) break;
  }
  // A link that cannot be resolved, perhaps because its target outside does not exist.
  if (descriptor < 0 && errno == ELOOP) return {.error_number = EXDEV};
  return KeepRegular(descriptor);
}

bool LacksOpenAt2(int error_number) { return error_number == ENOSYS || error_number == EPERM; }

std::vector<std::string>& DataRoots() {
  static auto* const roots = new std::vector<std::string>();
  return *roots;
}

}  // namespace

namespace internal {

OpenedFile OpenBeneathByComponents(absl::Span<const std::string> roots, const std::string& path) {
  return OpenResolved(roots, path, OpenByComponents);
}

}  // namespace internal

OpenedFile OpenBeneath(absl::Span<const std::string> roots, const std::string& path) {
  // The usual path names a root and needs one call. The kernel answers EXDEV for ".." and links
  // that leave the root, even if they come back, and for all absolute links.
  if (const auto found = FindRoot(roots, path)) {
    const int root = open(found->root.c_str(), kFolderFlags);
    if (root < 0) return {.error_number = errno};
    const absl::Cleanup close_root = [root] { close(root); };
    const OpenedFile file =
        KeepRegular(OpenAt2(root, found->relative, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS));
    const int why = file.error_number;
    if (why != EXDEV && why != ELOOP && !LacksOpenAt2(why)) return file;
  }
  const OpenedFile file = OpenResolved(roots, path, OpenWithoutLinks);
  if (!LacksOpenAt2(file.error_number)) return file;
  return internal::OpenBeneathByComponents(roots, path);
}

void SetDataRoots(std::vector<std::string> roots) { DataRoots() = std::move(roots); }

OpenedFile OpenRegularDataFile(const std::string& path) {
  return DataRoots().empty() ? OpenRegularFile(path) : OpenBeneath(DataRoots(), path);
}

}  // namespace muster
