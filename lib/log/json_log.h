// The log as text, or as JSON for the collectors of a cluster: one object a line, with these
// members in this order, each only if it applies.
//
//   time        "2026-11-29T02:12:07.399756Z", RFC 3339
//   severity    "INFO", "WARNING", "ERROR" or "FATAL"
//   source      "services/worker/main.cc:103"
//   member, job, generation, method, resource, caller, address, result: see LogFields
//   message     text; bytes that are no UTF-8 are '?'
//   stack       of FATAL: an array of strings, the innermost function first
#pragma once

#include <time.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "lib/log/log_scope.h"

namespace muster {

enum class LogFormat { kText, kJson };

// Required by ABSL_FLAG.
bool AbslParseFlag(absl::string_view text, LogFormat* format, std::string* error);
std::string AbslUnparseFlag(LogFormat format);

struct LogLine {
  timespec time;
  absl::string_view severity;
  absl::string_view file;
  int line = 0;
  LogFields fields;
  absl::string_view message;
  std::vector<std::string> stack;
};

// Returns the line as JSON, with a newline at its end. Valid for any bytes in its texts.
std::string ToJson(const LogLine& line);

// kJson: writes everything that glog and gRPC log to stderr as JSON. kText: changes nothing.
// After LOG(FATAL) the process ends by SIGABRT in either format. Call it once, after
// InitGoogleLogging() and before the second thread starts. `program` is argv[0].
void SetLogFormat(LogFormat format, const char* program);

// Logs `message` as INFO. Safe in signal handlers: takes no lock and allocates nothing. Requires:
// at most 128 bytes of ASCII without quotation marks, backslashes and control characters.
void LogInSignalHandler(absl::string_view message);

}  // namespace muster
