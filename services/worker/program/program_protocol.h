// The messages between a program and its worker: docs/loop_protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace muster {

enum class ProgramMessageKind : uint8_t {
  kHello = 1,
  kData = 2,
  kNext = 3,
  kGradients = 4,
  kEvaluation = 5,
  kFailed = 6,
  kWelcome = 65,
  kRefused = 66,
  kBegin = 67,
  kEnd = 68,
  kResult = 69,
  kWaiting = 70,
};

constexpr int kProgramProtocol = 1;
constexpr size_t kProgramHeaderBytes = 8;
constexpr size_t kProgramBodyBytesMax = 1 << 20;   // to the worker
constexpr size_t kProgramErrorBytesMax = 8 << 10;  // of FAILED; the worker keeps the end

using ProgramMetrics = std::map<std::string, double>;

struct ProgramHello {
  int64_t protocol = 0;
  std::string version;
  std::string job;      // an id, or the name in the job file; "": any
  int64_t process = 0;  // above 0: it only shares the memory
  int64_t pid = 0;
};

struct ProgramData {
  int64_t samples = 0;  // 0: a stream without end
  int64_t evaluation_samples = 0;
};

struct FinishedStep {
  int64_t attempt = 0;
  int64_t step = 0;
  int64_t samples = 0;
  std::optional<double> loss;  // mean over the samples; none: the program logged none
  ProgramMetrics metrics;
  double forward_seconds = 0;
  double backward_seconds = 0;
  double data_seconds = 0;
};

struct ProgramNext {
  std::optional<FinishedStep> finished;
};

struct ProgramGradients {
  struct Entry {
    uint32_t parameter = 0;
    bool has_gradient = true;
    double learning_rate = 0;
  };
  int64_t attempt = 0;
  float weight = 0;  // finite, > 0
  std::vector<Entry> entries;
};

struct ProgramEvaluation {
  int64_t step = 0;
  int64_t samples = 0;
  ProgramMetrics metrics;
};

struct ProgramFailure {
  std::string message;  // the last kProgramErrorBytesMax bytes
};

using ProgramMessage = std::variant<ProgramHello, ProgramData, ProgramNext, ProgramGradients,
                                    ProgramEvaluation, ProgramFailure>;

// Parses the body of a message to the worker. Any bytes are safe. Returns INVALID_ARGUMENT for an
// unknown kind, and for a body that the protocol does not allow.
absl::StatusOr<ProgramMessage> ParseProgramMessage(uint8_t kind, absl::string_view body);

// The header of a message.
struct ProgramHeader {
  uint32_t length = 0;  // of the body
  uint8_t kind = 0;
};
// Returns INVALID_ARGUMENT if the length is too large or a reserved byte is not zero. Requires:
// kProgramHeaderBytes bytes.
absl::StatusOr<ProgramHeader> ParseProgramHeader(absl::string_view bytes);

// Returns the message with its header.
std::string FrameProgramMessage(ProgramMessageKind kind, absl::string_view body);

// Returns the number, or the string "nan", "inf" or "-inf".
nlohmann::json JsonNumber(double value);
// Returns the text of `json`. Bytes that are no UTF-8 become U+FFFD.
std::string JsonText(const nlohmann::json& json);

}  // namespace muster
