#include "lib/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "lib/checkpoint/checkpoint_layout.h"
#include "lib/checkpoint/checkpoint_reader.h"
#include "lib/checkpoint/coverage.h"
#include "lib/checkpoint/disk_file.h"
#include "lib/checkpoint/doomed_folder.h"
#include "lib/checkpoint/folder.h"
#include "lib/checkpoint/slice_sums.h"
#include "lib/plan/chunk_check.h"
#include "lib/plan/parameter_table.h"
#include "lib/status/status.h"
#include "lib/transport/core/crc32c.h"

namespace muster {
namespace {

constexpr int64_t kIdBytesMax = 64;

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

int64_t ChunkBytes(const v1::PlanChunk& chunk) {
  return chunk.elements() * static_cast<int64_t>(sizeof(float));
}

// The id becomes part of a path, so it must not contain '/' or '.'.
absl::Status CheckId(const std::string& id) {
  auto allowed = [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_'; };
  if (id.empty() || id.size() > kIdBytesMax || !std::all_of(id.begin(), id.end(), allowed)) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint id '", id, "' is not 1 to ",
                                                   kIdBytesMax, " letters, digits, '-' and '_'"));
  }
  return absl::OkStatus();
}

class FolderWriter : public CheckpointWriter {
 public:
  FolderWriter(const v1::JobPlan& plan, CheckpointLayout layout,
               const CheckpointWriter::Options& options, std::string temporary)
      : chunks_(plan.chunks().begin(), plan.chunks().end()),
        layout_(std::move(layout)),
        temporary_(std::move(temporary)),
        final_(CheckpointPath(options.directory, options.step)),
        shared_(options.shared),
        slots_of_chunk_(SlotsOfChunks(plan)),
        coverage_(RangeBytes()),
        sums_(layout_.files.size()) {
    manifest_.job = plan.job();
    manifest_.step = options.step;
    manifest_.total_steps = options.total_steps;
    manifest_.update_state = options.update_state;
    manifest_.data_fingerprint = options.data_fingerprint;
    manifest_.spec = plan.spec();
    manifest_.slots = OptimizerSlotNames(plan.spec().training().optimizer());
  }

  ~FolderWriter() override {
    if (published_) return;
    if (absl::Status removed = RemoveAside(temporary_); !removed.ok()) LOG(WARNING) << removed;
  }

  absl::Status MakeFiles() {
    for (const FileLayout& layout : layout_.files) {
      const std::string path = absl::StrCat(temporary_, "/", layout.name);
      ASSIGN_OR_RETURN(DiskFile file,
                       shared_ ? DiskFile::CreateToWriteOnly(path) : DiskFile::CreateToWrite(path));
      // A full device is noticed here, before any slice is sent.
      RETURN_IF_ERROR(file.Reserve(layout.header.file_bytes));
      RETURN_IF_ERROR(file.WriteAt(0, BytesOf(layout.header_bytes)));
      absl::MutexLock lock(&mu_);
      if (shared_) {
        sums_[files_.size()].Add(0, std::ssize(layout.header_bytes),
                                 Crc32c(BytesOf(layout.header_bytes)));
      }
      files_.push_back(std::move(file));
    }
    return absl::OkStatus();
  }

  absl::Status WriteSlice(int chunk, int slot, int64_t offset_bytes,
                          absl::Span<const std::byte> data) override {
    RETURN_IF_ERROR(CheckSlice(chunk, slot, offset_bytes, std::ssize(data)));
    const Place place = PlaceOf(chunk, slot);
    RETURN_IF_ERROR(files_[place.file].WriteAt(place.offset_bytes + offset_bytes, data));
    Cover(chunk, slot, offset_bytes, std::ssize(data), shared_ ? Crc32c(data) : 0);
    return absl::OkStatus();
  }

  absl::Status SliceWritten(int chunk, int slot, int64_t offset_bytes, int64_t bytes,
                            uint32_t crc32c) override {
    CHECK(shared_) << final_;
    RETURN_IF_ERROR(CheckSlice(chunk, slot, offset_bytes, bytes));
    Cover(chunk, slot, offset_bytes, bytes, crc32c);
    return absl::OkStatus();
  }

  const std::string& temporary() const override { return temporary_; }

  std::vector<File> Files() const override {
    std::vector<File> files;
    for (const FileLayout& layout : layout_.files) {
      files.push_back({.name = layout.name, .bytes = layout.header.file_bytes});
    }
    return files;
  }

  Place PlaceOf(int chunk, int slot) const override {
    const TensorPlace& place = layout_.places[slot][chunks_[chunk].parameter()];
    return {.file = place.file,
            .offset_bytes =
                place.offset + chunks_[chunk].offset() * static_cast<int64_t>(sizeof(float))};
  }

  bool complete() const override {
    absl::MutexLock lock(&mu_);
    return coverage_.incomplete() == 0;
  }

  absl::StatusOr<v1::Checkpoint> Commit() override {
    // A sync after a failed one may report success without having written anything.
    CHECK(!commit_tried_) << final_ << ": Commit() may be called only once";
    RETURN_IF_ERROR(CheckComplete());
    commit_tried_ = true;
    for (size_t i = 0; i < files_.size(); ++i) {
      RETURN_IF_ERROR(files_[i].Sync());
      v1::CheckpointFile& file = manifest_.files.emplace_back();
      file.set_name(layout_.files[i].name);
      file.set_size_bytes(layout_.files[i].header.file_bytes);
      ASSIGN_OR_RETURN(*file.mutable_sha256(), shared_ ? ReadBack(i) : files_[i].Sha256());
    }
    manifest_.create_time_unix_millis = absl::ToUnixMillis(absl::Now());
    ASSIGN_OR_RETURN(DiskFile manifest,
                     DiskFile::CreateToWrite(absl::StrCat(temporary_, "/", kManifestName)));
    ASSIGN_OR_RETURN(const std::string json, manifest_.ToJson());
    RETURN_IF_ERROR(manifest.WriteAt(0, BytesOf(json)));
    RETURN_IF_ERROR(manifest.Sync());
    RETURN_IF_ERROR(SyncFolder(temporary_));
    RETURN_IF_ERROR(Publish());
    return DescribeCheckpoint(manifest_, manifest_.job, final_);
  }

 private:
  absl::Status CheckSlice(int chunk, int slot, int64_t offset_bytes, int64_t bytes) const {
    if (chunk < 0 || chunk >= static_cast<int>(chunks_.size()) || !HasSlot(chunk, slot)) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " slot ", slot,
                                                     ": the plan has ", chunks_.size(),
                                                     " chunks with ", Slots(), " slots"));
    }
    const int64_t chunk_bytes = ChunkBytes(chunks_[chunk]);
    if (offset_bytes < 0 || bytes < 0 || bytes > chunk_bytes ||
        offset_bytes > chunk_bytes - bytes) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " slot ", slot, ": bytes [",
                                                     offset_bytes, ", + ", bytes, ") of ",
                                                     chunk_bytes));
    }
    return absl::OkStatus();
  }

  void Cover(int chunk, int slot, int64_t offset_bytes, int64_t bytes, uint32_t crc32c) {
    const Place place = PlaceOf(chunk, slot);
    absl::MutexLock lock(&mu_);
    coverage_.Add(int64_t{chunk} * Slots() + slot, offset_bytes, offset_bytes + bytes);
    if (shared_) sums_[place.file].Add(place.offset_bytes + offset_bytes, bytes, crc32c);
  }

  // Opens the file again, because a client of a network file system then checks whether its cached
  // data is still valid.
  absl::StatusOr<std::string> ReadBack(size_t file) {
    ASSIGN_OR_RETURN(const DiskFile written, DiskFile::OpenToRead(files_[file].path()));
    SliceSums sums;
    {
      absl::MutexLock lock(&mu_);
      sums = std::move(sums_[file]);
    }
    return sums.VerifyAndHash(written);
  }

  static std::vector<SlotRange> SlotsOfChunks(const v1::JobPlan& plan) {
    std::vector<SlotRange> slots;
    for (const v1::PlanChunk& chunk : plan.chunks()) slots.push_back(SlotsOfChunk(plan, chunk));
    return slots;
  }

  std::vector<int64_t> RangeBytes() const {
    std::vector<int64_t> bytes;
    for (int chunk = 0; chunk < std::ssize(chunks_); ++chunk) {
      for (int slot = 0; slot < Slots(); ++slot) {
        bytes.push_back(HasSlot(chunk, slot) ? ChunkBytes(chunks_[chunk]) : 0);
      }
    }
    return bytes;
  }

  bool HasSlot(int chunk, int slot) const {
    return slots_of_chunk_[chunk].first <= slot && slot <= slots_of_chunk_[chunk].last;
  }

  int Slots() const { return layout_.places.size(); }

  absl::Status CheckComplete() const {
    absl::MutexLock lock(&mu_);
    if (coverage_.incomplete() == 0) return absl::OkStatus();
    const int64_t first = coverage_.FirstIncomplete();
    return absl::FailedPreconditionError(absl::StrCat(
        final_, ": ", coverage_.incomplete(), " of ", chunks_.size() * Slots(),
        " slices are incomplete, first chunk ", first / Slots(), " slot ", first % Slots()));
  }

  // The commit. `final_` is the old checkpoint, or absent, before this function and the new one
  // after it.
  absl::Status Publish() {
    std::error_code error;
    std::string replaced;
    if (!std::filesystem::exists(final_, error)) {
      RETURN_IF_ERROR(RenameFolder(temporary_, final_));
    } else if (absl::Status exchanged = ExchangeFolders(temporary_, final_); exchanged.ok()) {
      replaced = temporary_;
    } else if (absl::IsUnimplemented(exchanged)) {
      // Two renames. If the process dies between them, FinishReplacements() restores the old
      // checkpoint.
      replaced =
          absl::StrCat(ParentOf(final_), "/", TemporaryFolderName(manifest_.step, kReplacedId));
      RemoveReplaced(replaced);
      RETURN_IF_ERROR(RenameFolder(final_, replaced));
      if (absl::Status renamed = RenameFolder(temporary_, final_); !renamed.ok()) {
        if (absl::Status back = RenameFolder(replaced, final_); !back.ok()) LOG(ERROR) << back;
        return renamed;
      }
    } else {
      return exchanged;
    }
    published_ = true;
    RETURN_IF_ERROR(SyncFolder(ParentOf(final_)));
    if (!replaced.empty()) RemoveReplaced(replaced);
    return absl::OkStatus();
  }

  static void RemoveReplaced(const std::string& replaced) {
    const absl::Status removed = RemoveAside(replaced);
    if (!removed.ok() && !absl::IsNotFound(removed)) LOG(WARNING) << removed;
  }

  const std::vector<v1::PlanChunk> chunks_;
  const CheckpointLayout layout_;
  const std::string temporary_, final_;
  const bool shared_;
  const std::vector<SlotRange> slots_of_chunk_;
  std::vector<DiskFile> files_;  // as layout_.files
  Manifest manifest_;
  bool commit_tried_ = false;
  bool published_ = false;
  mutable absl::Mutex mu_;
  Coverage coverage_ ABSL_GUARDED_BY(mu_);            // range = chunk * slots + slot
  std::vector<SliceSums> sums_ ABSL_GUARDED_BY(mu_);  // as files_; used by a shared writer
};

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(const v1::JobPlan& plan,
                                                                           const Options& options) {
  RETURN_IF_ERROR(CheckId(options.id));
  if (options.step < 0)
    return absl::InvalidArgumentError(absl::StrCat("checkpoint of step ", options.step));
  RETURN_IF_ERROR(CheckChunks(plan));
  const std::vector<std::string> slots = OptimizerSlotNames(plan.spec().training().optimizer());
  // Records the job's name and not its id, so that the same job run twice writes the same bytes.
  ASSIGN_OR_RETURN(CheckpointLayout layout, LayOutCheckpoint(plan.graph(), slots,
                                                             {{"format", "pt"},
                                                              {"job", plan.spec().name()},
                                                              {"step", absl::StrCat(options.step)}},
                                                             options.file_bytes_max));
  RETURN_IF_ERROR(MakeFolders(options.directory));
  const std::string temporary =
      absl::StrCat(options.directory, "/", TemporaryFolderName(options.step, options.id));
  RETURN_IF_ERROR(MakeFolder(temporary));
  auto writer = std::make_unique<FolderWriter>(plan, std::move(layout), options, temporary);
  RETURN_IF_ERROR(writer->MakeFiles());
  return writer;
}

}  // namespace muster
