// Attaches fields to log lines, for the JSON format (json_log.h).
#pragma once

#include <cstdint>
#include <string>

namespace muster {

// The fields of a log line. Empty fields, and a generation of 0, are omitted.
struct LogFields {
  std::string member;  // the ps or worker
  std::string job;
  int64_t generation = 0;  // the job's generation
  // Only in lines of the audit log.
  std::string method, resource, caller, address, result;
};

// While a scope exists, the lines logged by its thread have these fields. In nested scopes, a field
// comes from the innermost scope that sets it. Create one where a thread begins work for a job; it
// copies the strings. Must be on the stack, and used only by its thread.
class LogScope {
 public:
  explicit LogScope(LogFields fields);
  // Uses the fields of `scope` and the scopes around it, without copying. `scope` belongs to
  // another thread, which must keep it until this one is destroyed. Null: no fields.
  explicit LogScope(const LogScope* scope);
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;
  ~LogScope();

  // Returns the fields of a line that the calling thread would log now. A thread that it starts for
  // its work should begin with a scope of these.
  static LogFields Current();
  // Returns the calling thread's innermost scope, or null. For a thread that does a part of the
  // caller's work while the caller waits.
  static const LogScope* Innermost();

  // Sets the member of all lines without a scope that sets one. Not thread-safe: call it before the
  // second thread starts.
  static void SetProcessMember(const std::string& member);

 private:
  const LogFields fields_;
  const LogScope* const outer_;   // provides the fields that this scope does not set
  const LogScope* const before_;  // the thread's innermost before this one
};

}  // namespace muster
