// What power cuts leave of a folder: every change below it is recorded and can be made again, up to
// the cut.
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

// A tree of files as the page cache has it, and as the device has it. A sync of a file brings its
// content to the device, a sync of a folder its entries; nothing else does, though file systems are
// often kinder. Not thread-safe.
class CachedTree {
 public:
  struct Change {
    enum class Kind { kCreate, kMakeFolder, kWrite, kResize, kMove, kExchange, kRemove, kSync };
    Kind kind;
    int node = 0;      // of kWrite, kResize and kSync; else the folder that holds the entry
    std::string name;  // of the entry
    int to_node = 0;   // kMove and kExchange: the other folder and entry
    std::string to_name;
    int64_t offset = 0;  // kWrite: in bytes; kResize: the new size in bytes
    std::string data;    // kWrite
  };
  enum class Loss {
    kWhatWasNotSynced,
    kContentThatWasNotSynced,  // as where the journal has names only: new files are there, and
                               // empty
    kNothing,
  };

  CachedTree() { nodes_.push_back({.folder = true}); }

  void Apply(const Change& change);
  // Makes `folder`, which must not exist, as it would be found after a power cut now.
  void Leave(Loss loss, const std::string& folder) const;
  // The same where the device had begun with what was not synced: of each file it has any of the
  // pages, of each folder the first few of its changes, at random.
  void LeaveAtRandom(std::mt19937& random, const std::string& folder) const;
  // The node of a path below the root, whose path is ""; -1: none.
  int Find(const std::string& path) const;
  // Of a file.
  const std::string& DataSynced(int node) const { return nodes_[node].data_synced; }
  int64_t Size(int node) const { return static_cast<int64_t>(nodes_[node].data.size()); }

 private:
  struct Node {
    bool folder = false;
    std::string data = {}, data_synced = {};
    std::map<std::string, int> entries = {}, entries_synced = {};
    // Since the last sync: of a file; of a folder what its entries were after each change.
    std::vector<Change> changes_since = {};
    std::vector<std::map<std::string, int>> entries_since = {};
  };

  static void ApplyTo(std::string& data, const Change& change);
  void LeaveNode(int node, Loss loss, const std::string& path) const;
  void LeaveNodeAtRandom(int node, std::mt19937& random, const std::string& path) const;

  std::vector<Node> nodes_;  // the first is the root; a number is never used twice
};

// Records what this process does below `root` by the calls of libc that Muster and SQLite make, in
// the order in which it is done, from construction to Take(). What is written to mapped memory is
// not seen. One at a time. In a program that links this no fsync waits for a disk, ever.
class RecordedDisk {
 public:
  explicit RecordedDisk(const std::string& root);  // an empty folder
  ~RecordedDisk();

  // How many changes there were until now. Thread-safe.
  int64_t count() const;
  std::vector<CachedTree::Change> Take();

  // A device that fails: calls that would change something below the root return EIO and change
  // nothing. A sync of a file that fails loses what it should have brought to the device, at once,
  // and a later sync that succeeds does not bring it back: so do Linux's file systems, which mark
  // such pages clean, with the difference that they take their time to drop them.
  //
  // libfiu, which Debian has, does not serve: it knows neither the n-th call nor one folder, leaves
  // fallocate, mkdir, openat and renameat2 alone, and loses nothing after an fsync that failed.
  struct Fault {
    int64_t first = 1;  // which call from Break() on fails: 1 is the next
    int64_t count = 1;  // how many in a row
    // Called on the caller's thread, before the call returns: "pwrite", "/.../store.db-wal".
    std::function<void(const char* operation, const std::string& path)> told;
  };
  void Break(Fault fault);
  // Ends the fault, and tells how many calls there were since Break().
  int64_t Mend();

 private:
  friend class RecordedCall;

  const std::string root_;
  CachedTree tree_;  // as it is now; guarded by the recorder's lock, as are the changes
  std::vector<CachedTree::Change> changes_;
  std::optional<Fault> fault_;
  int64_t calls_ = 0;  // since Break()
};

}  // namespace muster
