// What the lines of the log are about, as fields of the JSON format (json_log.h).
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// A field that is empty, and a generation of 0, does not apply: a line is written without it.
struct LogFields {
  std::string member;  // the ps or worker
  std::string job;
  int64_t generation = 0;  // of the job
  // Of a line of the audit log.
  std::string method, resource, caller, address, result;
};

// As long as it exists, the lines that its thread logs have these fields. If scopes lie within each
// other, a field is that of the innermost scope that has it. Make one where the work for a job
// begins on a thread; it costs copies of the strings. Lives on the stack; used by its thread alone.
class LogScope {
 public:
  explicit LogScope(LogFields fields);
  // With the fields of `scope`, of another thread that keeps it until this one is gone, and of the
  // scopes around it; null: with none. Copies nothing.
  explicit LogScope(const LogScope* scope);
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;
  ~LogScope();

  // The fields of a line that the calling thread logs now. A thread that it starts for its work
  // begins with a scope of these.
  static LogFields Current();
  // The calling thread's last scope that still exists; null: none. For a thread that does a part of
  // its work while it waits.
  static const LogScope* Innermost();

  // Sets the member of all lines to which no scope gives another. Not thread-safe: call it before
  // the second thread starts.
  static void SetProcessMember(const std::string& member);

 private:
  const LogFields fields_;
  const LogScope* const outer_;   // whose fields come next
  const LogScope* const before_;  // the thread's innermost before this one
};

}  // namespace muster
