// Opens files named by users or peers. Such a name may refer to a pipe or a device, on which an
// open or a read could block forever.
#pragma once

#include <string>

namespace muster {

struct OpenedFile {
  int descriptor = -1;   // the caller must close it; < 0: the file could not be opened
  int error_number = 0;  // why not; 0: it is not a regular file
};

// Takes the descriptor of anything that was opened. Keeps it if it is a regular file, and closes it
// otherwise. If it is -1, errno says why.
OpenedFile KeepRegular(int descriptor);

// Opens `path` for reading, with close-on-exec. Never blocks on a pipe or a device.
OpenedFile OpenRegularFile(const std::string& path);

// Returns the name of this machine, or "this machine" if it has none.
std::string HostName();

// Returns why a path cannot be opened, from errno: "/data/x.npy: no such file or directory on
// node-3". Makes a relative path absolute; node-3 is HostName().
std::string PathFault(const std::string& path, int error_number);

}  // namespace muster
