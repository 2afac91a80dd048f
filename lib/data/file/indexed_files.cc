#include "lib/data/file/indexed_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/data/data_fault.h"
#include "lib/status/status.h"

namespace muster {
namespace {

constexpr int64_t kKeptMin = 64;

constinit std::atomic<int64_t> kept_by_process = 0;

int64_t KeptMax() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kKeptMin;
  const rlim_t quarter = limit.rlim_cur / 4;  // a huge number if there is no limit
  return std::max<int64_t>(static_cast<int64_t>(quarter), kKeptMin);
}

}  // namespace

IndexedFiles::IndexedFiles(std::shared_ptr<const RecordIndex> index, std::string field)
    : index_(std::move(index)),
      field_(std::move(field)),
      kept_max_(KeptMax()),
      by_number_(index_->files().size()) {}

IndexedFiles::~IndexedFiles() { kept_by_process -= std::ssize(kept_); }

absl::StatusOr<std::shared_ptr<const DataFile>> IndexedFiles::Get(int file) const {
  if (const DataFile* kept = by_number_[file].load(std::memory_order_acquire)) {
    return std::shared_ptr<const DataFile>(std::shared_ptr<void>(), kept);  // counts no references
  }
  const IndexedFile& indexed = index_->files()[file];
  ASSIGN_OR_RETURN(std::shared_ptr<const DataFile> opened, DataFile::Open(indexed.path, field_));
  if (opened->bytes() != indexed.bytes || opened->modified_ns() != indexed.modified_ns) {
    return DataInvalid(field_, absl::StrCat(indexed.path, ": has ", opened->bytes(),
                                            " bytes and changed after its index was made for ",
                                            indexed.bytes, " bytes; submit the job again"));
  }
  absl::MutexLock lock(&mu_);
  const bool is_kept = by_number_[file].load(std::memory_order_relaxed) != nullptr;
  if (is_kept) return opened;
  if (++kept_by_process > kept_max_) {
    --kept_by_process;
    return opened;
  }
  kept_.push_back(opened);
  by_number_[file].store(opened.get(), std::memory_order_release);
  return opened;
}

}  // namespace muster
