// Damaged and hostile files, and what a job says about each of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/data/source/data_options.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A file, and the one error that a job gets for it.
struct HostileFile {
  std::string name;  // of the case
  std::string bytes;
  std::vector<std::string> parts;  // of the message, which also names the file
  std::string reason = "DATA_DAMAGED";
  absl::StatusCode code = absl::StatusCode::kDataLoss;
};

// Return a file with the reason DATA_DAMAGED, DATA_TRUNCATED, DATA_INVALID or DATA_TOO_SMALL, and
// the code of that reason.
HostileFile Damaged(std::string name, std::string bytes, std::vector<std::string> parts);
HostileFile Truncated(std::string name, std::string bytes, std::vector<std::string> parts);
HostileFile Invalid(std::string name, std::string bytes, std::vector<std::string> parts);
HostileFile TooSmall(std::string name, std::string bytes, std::vector<std::string> parts);

// Returns `bytes` with others at a place.
std::string Patched(std::string bytes, size_t at, absl::string_view others);

// Returns a number in little-endian bytes.
std::string LittleEndian(uint64_t number, int bytes);

// Returns a folder of this name in the folder for tests. It is empty.
std::string EmptyFolder(const std::string& name);

// Writes a file and returns its path.
std::string WriteFile(const std::string& path, absl::string_view bytes);

// The model reads "x" f32[-1, 2] and "target" i32[-1] from 0 to 9.
v1::Graph NumbersGraph();

// Opens the data as a worker does, and reads each training sample alone. Returns all errors.
std::vector<absl::Status> ErrorsOf(const v1::DataSpec& spec, const v1::Graph& graph,
                                   const DataOptions& options = {});

// Writes each file to `path` and expects exactly its one error, in little memory.
void ExpectOneErrorEach(absl::Span<const HostileFile> files, const std::string& path,
                        const v1::DataSpec& spec, const v1::Graph& graph);

// Expects exactly the one error of `file` from `errors`.
void ExpectOneError(const HostileFile& file, const std::string& path,
                    const std::function<std::vector<absl::Status>()>& errors);

}  // namespace muster
