// Writes TensorBoard's event files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster::cli {

// Writes scalars into one file whose name TensorBoard recognizes. The records are TFRecords:
// length, masked CRC32C of the length, the event, masked CRC32C of the event. Not thread-safe.
class EventFile {
 public:
  // Creates the file "events.out.tfevents.SECONDS.NAME" in `folder`, and the folder if it is
  // missing. Replaces a file of that name.
  static absl::StatusOr<std::unique_ptr<EventFile>> Create(const std::string& folder,
                                                           absl::string_view name,
                                                           absl::Time start);
  ~EventFile();

  void AddScalar(absl::string_view tag, int64_t step, double value, absl::Time time);
  // Returns OK if everything was written to the file. Requires: called at most once, and last.
  absl::Status Close();

  const std::string& path() const { return path_; }

 private:
  EventFile(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  void Write(absl::string_view event);

  const std::string path_;
  std::FILE* file_;
  bool failed_ = false;
};

}  // namespace muster::cli
