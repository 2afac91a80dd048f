// Opens files that others name, and that may be anything: a pipe or a device would make who opens
// it, or reads from it, wait for ever.
#pragma once

#include <string>

namespace muster {

struct OpenedFile {
  int descriptor = -1;   // the caller's to close; < 0: it could not be opened
  int error_number = 0;  // why not; 0: it is no regular file
};

// To read; closed by exec. Waits for nobody.
OpenedFile OpenRegularFile(const std::string& path);

}  // namespace muster
