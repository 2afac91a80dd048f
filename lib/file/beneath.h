// Opens files beneath allowed folders. A link that is swapped after a check leads nowhere.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "lib/file/regular_file.h"

namespace muster {

// Opens the regular file `path` for reading, with close-on-exec, if it lies beneath one of `roots`
// after all links are resolved. Otherwise the error number is EXDEV, whether the file exists or
// not. Never blocks on a pipe or a device. Requires: the roots are canonical.
//
// Links may lead out of a root and back, or into another root: relative ones, such as Kubernetes'
// "..data" links, and absolute ones. The kernel checks what it opens: openat2 with RESOLVE_BENEATH,
// or, if openat2 is missing or forbidden, one openat with O_NOFOLLOW per component.
OpenedFile OpenBeneath(absl::Span<const std::string> roots, const std::string& path);

// Sets the roots of OpenRegularDataFile(), of this process: those of --data_roots. Not thread-safe:
// call it at start, before files are opened. Requires: the roots are canonical.
void SetDataRoots(std::vector<std::string> roots);

// Opens a file of samples: as OpenBeneath(), or as OpenRegularFile() if there are no roots.
OpenedFile OpenRegularDataFile(const std::string& path);

namespace internal {

// As OpenBeneath(), as if the kernel had no openat2.
OpenedFile OpenBeneathByComponents(absl::Span<const std::string> roots, const std::string& path);

}  // namespace internal

}  // namespace muster
