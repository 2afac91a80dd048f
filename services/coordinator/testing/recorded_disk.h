// Simulates power cuts: records every change below a folder and replays them up to the cut.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace muster {

// A tree of files, once as the page cache has it and once as the device has it. A sync of a file
// writes its content to the device, a sync of a folder its entries. Nothing else does, although
// real file systems often write more.
// Not thread-safe.
class CachedTree {
 public:
  struct Change {
    enum class Kind { kCreate, kMakeFolder, kWrite, kResize, kMove, kExchange, kRemove, kSync };
    Kind kind;
    int node = 0;      // of kWrite, kResize and kSync; otherwise the folder of the entry
    std::string name;  // of the entry
    int to_node = 0;   // kMove and kExchange: the other folder and entry
    std::string to_name;
    int64_t offset = 0;  // kWrite: in bytes; kResize: the new size in bytes
    std::string data;    // kWrite
  };
  enum class Loss {
    kWhatWasNotSynced,
    kContentThatWasNotSynced,  // new files exist but are empty, as if the journal only had names
    kNothing,
  };

  CachedTree() { nodes_.push_back({.folder = true}); }

  void Apply(const Change& change);
  // Creates `folder`, which must not exist, with the content after a power cut now.
  void Leave(Loss loss, const std::string& folder) const;
  // Like Leave(), for a device that had begun to write unsynced changes: each file has a random
  // part of its pages, each folder the first few of its changes.
  void LeaveAtRandom(std::mt19937& random, const std::string& folder) const;
  // Returns the node of a path below the root, which has the path ""; -1 if there is none.
  int Find(const std::string& path) const;
  // Requires: the node is a file.
  const std::string& DataSynced(int node) const { return nodes_[node].data_synced; }
  int64_t Size(int node) const { return static_cast<int64_t>(nodes_[node].data.size()); }

 private:
  struct Node {
    bool folder = false;
    std::string data = {}, data_synced = {};
    std::map<std::string, int> entries = {}, entries_synced = {};
    // Since the last sync: changes of a file, or the entries of a folder after each change.
    std::vector<Change> changes_since = {};
    std::vector<std::map<std::string, int>> entries_since = {};
  };

  static void ApplyTo(std::string& data, const Change& change);
  void LeaveNode(int node, Loss loss, const std::string& path) const;
  void LeaveNodeAtRandom(int node, std::mt19937& random, const std::string& path) const;

  std::vector<Node> nodes_;  // the first is the root; numbers are never reused
};

// Records the changes of this process below `root`, in order, from construction to Take(). Sees the
// calls of libc that Muster and SQLite make, but not writes to mapped memory. One at a time. In a
// program that links this, fsync never waits for a disk.
class RecordedDisk {
 public:
  explicit RecordedDisk(const std::string& root);  // an empty folder
  ~RecordedDisk();

  // Returns the number of changes so far. Thread-safe.
  int64_t count() const;
  std::vector<CachedTree::Change> Take();

  // Simulates a failing device: calls that would change something below the root return EIO and
  // change nothing. A failed sync of a file loses the unsynced content at once, and a later
  // successful sync does not restore it. Linux file systems behave so as well: they mark such pages
  // clean, but drop them later.
  //
  // Debian's libfiu cannot replace this. It cannot select the n-th call or a folder. It does not
  // cover fallocate, mkdir, openat and renameat2, and loses no content after a failed fsync.
  struct Fault {
    int64_t first = 1;  // the first call that fails; 1 is the next one
    int64_t count = 1;  // how many calls fail in a row
    // Called on the caller's thread before the call returns, with "pwrite", "/.../store.db-wal".
    std::function<void(const char* operation, const std::string& path)> told;
  };
  void Break(Fault fault);
  // Ends the fault. Returns the number of calls since Break().
  int64_t Mend();

 private:
  friend class RecordedCall;

  const std::string root_;
  CachedTree tree_;  // the present state; guarded by the recorder's lock, as are the changes
  std::vector<CachedTree::Change> changes_;
  std::optional<Fault> fault_;
  int64_t calls_ = 0;  // since Break()
};

}  // namespace muster
