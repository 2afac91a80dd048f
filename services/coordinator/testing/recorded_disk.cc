#include "services/coordinator/testing/recorded_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <utility>

namespace muster {

namespace fs = std::filesystem;
using Change = CachedTree::Change;
using Kind = Change::Kind;

// ---------------------------------------------------------------- the tree

void CachedTree::Apply(const Change& change) {
  CHECK_GE(change.node, 0) << change.name << " is in an unknown folder";
  const int added = static_cast<int>(nodes_.size());
  if (change.kind == Kind::kCreate || change.kind == Kind::kMakeFolder) {
    nodes_.push_back({.folder = change.kind == Kind::kMakeFolder});
  }
  Node& node = nodes_[change.node];
  switch (change.kind) {
    case Kind::kCreate:
    case Kind::kMakeFolder:
      node.entries[change.name] = added;
      break;
    case Kind::kWrite:
    case Kind::kResize:
      ApplyTo(node.data, change);
      node.changes_since.push_back(change);
      break;
    case Kind::kMove: {
      const int moved = node.entries.at(change.name);
      node.entries.erase(change.name);
      nodes_[change.to_node].entries[change.to_name] = moved;
      break;
    }
    case Kind::kExchange:
      std::swap(node.entries.at(change.name), nodes_[change.to_node].entries.at(change.to_name));
      break;
    case Kind::kRemove:
      node.entries.erase(change.name);
      break;
    case Kind::kSync:
      node.data_synced = node.data;
      node.entries_synced = node.entries;
      node.changes_since.clear();
      node.entries_since.clear();
      break;
  }
  if (node.folder && change.kind != Kind::kSync) node.entries_since.push_back(node.entries);
  const bool between = change.kind == Kind::kMove || change.kind == Kind::kExchange;
  if (between && change.to_node != change.node) {
    Node& other = nodes_[change.to_node];
    other.entries_since.push_back(other.entries);
  }
}

void CachedTree::ApplyTo(std::string& data, const Change& change) {
  if (change.kind == Kind::kResize) {
    data.resize(change.offset);
  } else if (!change.data.empty()) {
    data.resize(std::max(data.size(), change.offset + change.data.size()));
    std::ranges::copy(change.data, data.begin() + change.offset);
  }
}

int CachedTree::Find(const std::string& path) const {
  int node = 0;
  for (const fs::path& name : fs::path(path)) {
    const auto entry = nodes_[node].entries.find(name.native());
    if (entry == nodes_[node].entries.end()) return -1;
    node = entry->second;
  }
  return node;
}

void CachedTree::Leave(Loss loss, const std::string& folder) const { LeaveNode(0, loss, folder); }

void CachedTree::LeaveNode(int number, Loss loss, const std::string& path) const {
  const Node& node = nodes_[number];
  if (!node.folder) {
    std::ofstream(path, std::ios::binary)
        << (loss == Loss::kNothing ? node.data : node.data_synced);
    return;
  }
  CHECK(fs::create_directory(path)) << path;
  for (const auto& [name, entry] :
       loss == Loss::kWhatWasNotSynced ? node.entries_synced : node.entries) {
    LeaveNode(entry, loss, path + "/" + name);
  }
}

void CachedTree::LeaveAtRandom(std::mt19937& random, const std::string& folder) const {
  LeaveNodeAtRandom(0, random, folder);
}

void CachedTree::LeaveNodeAtRandom(int number, std::mt19937& random,
                                   const std::string& path) const {
  const Node& node = nodes_[number];
  if (!node.folder) {
    // Pages go to the device in any order, each with its content at that time, so a page loses only
    // its last changes. One file in four loses nothing. In the others, a page loses each change,
    // and all after it, with a probability of 1, 1/2 or 1/8.
    constexpr int64_t kPage = 4096;
    constexpr std::array<uint32_t, 3> kOneIn = {1, 2, 8};
    const size_t choice = random() % 4;
    std::set<int64_t> pages_lost;
    const auto is_lost = [&](int64_t page) {
      if (choice == kOneIn.size()) return false;
      if (!pages_lost.contains(page) && random() % kOneIn[choice] == 0) pages_lost.insert(page);
      return pages_lost.contains(page);
    };
    std::string data = node.data_synced;
    for (const Change& change : node.changes_since) {
      if (change.kind == Kind::kResize) {
        if (!is_lost(-1)) ApplyTo(data, change);
        continue;
      }
      const auto end = change.offset + static_cast<int64_t>(change.data.size());
      for (int64_t begin = change.offset, next = 0; begin < end; begin = next) {
        next = std::min(end, (begin / kPage + 1) * kPage);
        if (is_lost(begin / kPage)) continue;
        ApplyTo(data, {.kind = Kind::kWrite,
                       .offset = begin,
                       .data = change.data.substr(begin - change.offset, next - begin)});
      }
    }
    std::ofstream(path, std::ios::binary) << data;
    return;
  }
  CHECK(fs::create_directory(path)) << path;
  const size_t changes = random() % (node.entries_since.size() + 1);
  for (const auto& [name, entry] :
       changes == 0 ? node.entries_synced : node.entries_since[changes - 1]) {
    LeaveNodeAtRandom(entry, random, path + "/" + name);
  }
}

// ---------------------------------------------------------------- recording

namespace {

std::mutex recorder_mu;
RecordedDisk* recorder = nullptr;  // guarded by recorder_mu

std::string LinkAt(const std::string& path) {
  std::array<char, 4096> target;
  const long size = syscall(SYS_readlinkat, AT_FDCWD, path.c_str(), target.data(), target.size());
  return size < 0 ? "" : std::string(target.data(), size);
}

std::string PathOf(int descriptor) {
  return descriptor == AT_FDCWD ? LinkAt("/proc/self/cwd")
                                : LinkAt("/proc/self/fd/" + std::to_string(descriptor));
}

}  // namespace

// A call of libc under the recorder's lock, so that changes are recorded in the order of execution.
// Keeps the errno of the system call.
class RecordedCall {
 public:
  RecordedCall() : lock_(recorder_mu) {}
  ~RecordedCall() { errno = errno_; }

  template <typename... Arguments>
  long Make(long number, Arguments... arguments) {
    const long result = syscall(number, arguments...);
    errno_ = errno;
    return result;
  }

  // Returns the path below the recorded root; nullopt if it is elsewhere, or nothing is recorded.
  std::optional<std::string> Below(int folder, const char* name) const {
    if (recorder == nullptr) return std::nullopt;
    const fs::path path = name[0] == '/' ? fs::path(name) : fs::path(PathOf(folder)) / name;
    return Below(path.lexically_normal().native());
  }
  // Returns the node of an open descriptor; -1 if it is not recorded.
  int NodeOf(int descriptor) const {
    if (recorder == nullptr) return -1;
    const auto path = Below(PathOf(descriptor));
    return path ? recorder->tree_.Find(*path) : -1;
  }
  // Returns true if the device must fail this call. `path` is below the root.
  bool Fails(const char* operation, const std::optional<std::string>& path) {
    if (!path || recorder == nullptr || !recorder->fault_) return false;
    const RecordedDisk::Fault& fault = *recorder->fault_;
    const int64_t call = ++recorder->calls_;
    if (call < fault.first || call - fault.first >= fault.count) return false;
    if (fault.told) {
      fault.told(operation, recorder->root_ + (path->empty() ? "" : "/" + *path));
    }
    errno_ = EIO;
    return true;
  }
  bool Fails(const char* operation, int descriptor) {
    return recorder != nullptr && recorder->fault_ && Fails(operation, Below(PathOf(descriptor)));
  }
  // Drops the content of the file that the failed sync should have written.
  void LoseWhatWasNotSynced(int descriptor) {
    const int node = NodeOf(descriptor);
    struct stat facts;
    if (node < 0 || fstat(descriptor, &facts) != 0 || !S_ISREG(facts.st_mode)) return;
    std::string left = recorder->tree_.DataSynced(node);
    left.resize(recorder->tree_.Size(node));  // the journal keeps sizes
    // A second descriptor, because the first may be in append mode.
    const std::string path = PathOf(descriptor);
    const long file = syscall(SYS_openat, AT_FDCWD, path.c_str(), O_WRONLY | O_CLOEXEC);
    CHECK_GE(file, 0) << path;
    CHECK_EQ(syscall(SYS_pwrite64, file, left.data(), left.size(), 0), std::ssize(left)) << path;
    syscall(SYS_close, file);
    Record({.kind = Kind::kWrite, .node = node, .offset = 0, .data = std::move(left)});
  }
  int Find(const std::string& path) const { return recorder->tree_.Find(path); }
  int FolderOf(const std::string& path) const {
    return Find(fs::path(path).parent_path().native());
  }
  static std::string NameOf(const std::string& path) { return fs::path(path).filename().native(); }

  void Record(Change change) {
    recorder->tree_.Apply(change);
    recorder->changes_.push_back(std::move(change));
  }
  void RecordEntry(Kind kind, const std::string& path) {
    Record({.kind = kind, .node = FolderOf(path), .name = NameOf(path)});
  }
  void RecordSize(int descriptor) {
    struct stat facts;
    const int node = NodeOf(descriptor);
    if (node < 0 || fstat(descriptor, &facts) != 0) return;
    Record({.kind = Kind::kResize, .node = node, .offset = facts.st_size});
  }

 private:
  std::optional<std::string> Below(const std::string& path) const {
    const std::string& root = recorder->root_;
    if (path == root) return "";
    if (!path.starts_with(root + "/")) return std::nullopt;
    return path.substr(root.size() + 1);
  }

  const std::lock_guard<std::mutex> lock_;
  int errno_ = errno;
};

RecordedDisk::RecordedDisk(const std::string& root) : root_(fs::canonical(root).native()) {
  CHECK(fs::is_empty(root_)) << root_;
  const std::lock_guard<std::mutex> lock(recorder_mu);
  CHECK(recorder == nullptr);
  recorder = this;
}

RecordedDisk::~RecordedDisk() { Take(); }

int64_t RecordedDisk::count() const {
  const std::lock_guard<std::mutex> lock(recorder_mu);
  return std::ssize(changes_);
}

std::vector<Change> RecordedDisk::Take() {
  const std::lock_guard<std::mutex> lock(recorder_mu);
  recorder = nullptr;
  return std::exchange(changes_, {});
}

void RecordedDisk::Break(Fault fault) {
  const std::lock_guard<std::mutex> lock(recorder_mu);
  fault_ = std::move(fault);
  calls_ = 0;
}

int64_t RecordedDisk::Mend() {
  const std::lock_guard<std::mutex> lock(recorder_mu);
  fault_.reset();
  return calls_;
}

namespace {

int OpenRecorded(int folder, const char* name, int flags, mode_t mode) {
  RecordedCall call;
  const auto path = call.Below(folder, name);
  const bool existed = path && call.Find(*path) >= 0;
  if ((existed ? (flags & O_TRUNC) : (flags & O_CREAT)) && call.Fails("open", path)) return -1;
  const int descriptor =
      static_cast<int>(call.Make(SYS_openat, folder, name, flags | O_LARGEFILE, mode));
  if (descriptor < 0 || !path) return descriptor;
  if (!existed && (flags & O_CREAT)) {
    call.RecordEntry(Kind::kCreate, *path);
  } else if (existed && (flags & O_TRUNC)) {
    call.RecordSize(descriptor);
  }
  return descriptor;
}

ssize_t WriteRecorded(int file, const void* data, size_t size, std::optional<off_t> at) {
  RecordedCall call;
  if (call.Fails(at ? "pwrite" : "write", file)) return -1;
  const ssize_t written =
      at ? call.Make(SYS_pwrite64, file, data, size, *at) : call.Make(SYS_write, file, data, size);
  const int node = call.NodeOf(file);
  if (written <= 0 || node < 0) return written;
  const int64_t offset = at ? *at : lseek(file, 0, SEEK_CUR) - written;
  call.Record({.kind = Kind::kWrite,
               .node = node,
               .offset = offset,
               .data = std::string(static_cast<const char*>(data), written)});
  return written;
}

int ResizeRecorded(int file, off_t size) {
  RecordedCall call;
  if (call.Fails("ftruncate", file)) return -1;
  const long result = call.Make(SYS_ftruncate, file, size);
  if (result == 0) call.RecordSize(file);
  return static_cast<int>(result);
}

int ReserveRecorded(int file, int mode, off_t offset, off_t size) {
  RecordedCall call;
  if (call.Fails("fallocate", file)) return -1;
  const long result = call.Make(SYS_fallocate, file, mode, offset, size);
  if (result == 0) call.RecordSize(file);
  return static_cast<int>(result);
}

int MakeFolderRecorded(int folder, const char* name, mode_t mode) {
  RecordedCall call;
  const auto path = call.Below(folder, name);
  if (call.Fails("mkdir", path)) return -1;
  const long result = call.Make(SYS_mkdirat, folder, name, mode);
  if (result == 0 && path) call.RecordEntry(Kind::kMakeFolder, *path);
  return static_cast<int>(result);
}

int MoveRecorded(int folder, const char* name, int to_folder, const char* to_name,
                 unsigned int flags) {
  RecordedCall call;
  const auto from = call.Below(folder, name), to = call.Below(to_folder, to_name);
  if (call.Fails("rename", from)) return -1;
  const long result = call.Make(SYS_renameat2, folder, name, to_folder, to_name, flags);
  if (result != 0 || !from) return static_cast<int>(result);
  CHECK(to) << *from << " is moved out of the recorded folder";
  call.Record({.kind = flags == RENAME_EXCHANGE ? Kind::kExchange : Kind::kMove,
               .node = call.FolderOf(*from),
               .name = RecordedCall::NameOf(*from),
               .to_node = call.FolderOf(*to),
               .to_name = RecordedCall::NameOf(*to)});
  return 0;
}

int RemoveRecorded(int folder, const char* name, int flags) {
  RecordedCall call;
  const auto path = call.Below(folder, name);
  if (call.Fails("unlink", path)) return -1;
  const long result = call.Make(SYS_unlinkat, folder, name, flags);
  if (result == 0 && path) call.RecordEntry(Kind::kRemove, *path);
  return static_cast<int>(result);
}

int SyncRecorded(int file) {
  RecordedCall call;
  if (call.Fails("fsync", file)) {
    call.LoseWhatWasNotSynced(file);
    return -1;
  }
  if (const int node = call.NodeOf(file); node >= 0) {
    call.Record({.kind = Kind::kSync, .node = node});
  }
  return 0;
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & O_CREAT) ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

// The replaced calls of libc, also for shared libraries.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenRecorded(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenRecorded(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenRecorded(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenRecorded(folder, path, flags, mode);
}

ssize_t write(int file, const void* data, size_t size) {
  return WriteRecorded(file, data, size, std::nullopt);
}
ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  return WriteRecorded(file, data, size, at);
}
ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) {
  return WriteRecorded(file, data, size, at);
}
int ftruncate(int file, off_t size) noexcept { return ResizeRecorded(file, size); }
int ftruncate64(int file, off64_t size) noexcept { return ResizeRecorded(file, size); }
int fallocate(int file, int mode, off_t offset, off_t size) {
  return ReserveRecorded(file, mode, offset, size);
}
int fallocate64(int file, int mode, off64_t offset, off64_t size) {
  return ReserveRecorded(file, mode, offset, size);
}

int mkdir(const char* path, mode_t mode) noexcept {
  return MakeFolderRecorded(AT_FDCWD, path, mode);
}
char* mkdtemp(char* path) noexcept {
  static std::atomic<int> made = 0;
  char* const name = path + strlen(path) - 6;
  do {
    std::snprintf(name, 7, "%06d", made++);
  } while (mkdir(path, 0700) != 0 && errno == EEXIST);
  return path;
}
int rename(const char* from, const char* to) noexcept {
  return MoveRecorded(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat2(int folder, const char* from, int to_folder, const char* to,
              unsigned int flags) noexcept {
  return MoveRecorded(folder, from, to_folder, to, flags);
}
int unlink(const char* path) noexcept { return RemoveRecorded(AT_FDCWD, path, 0); }
int unlinkat(int folder, const char* path, int flags) noexcept {
  return RemoveRecorded(folder, path, flags);
}
int rmdir(const char* path) noexcept { return RemoveRecorded(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  const int result = unlink(path);
  return result != 0 && (errno == EISDIR || errno == EPERM) ? rmdir(path) : result;
}

int fsync(int file) { return SyncRecorded(file); }
int fdatasync(int file) { return SyncRecorded(file); }

}  // extern "C"

}  // namespace muster
