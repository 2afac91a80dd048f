#include "lib/log/log_scope.h"

#include <utility>

namespace muster {
namespace {

thread_local const LogScope* innermost = nullptr;

// Never destroyed, because the last lines are logged while the process ends.
std::string& ProcessMember() {
  static std::string& member = *new std::string;
  return member;
}

void TakeIfEmpty(const std::string& value, std::string& field) {
  if (field.empty()) field = value;
}

}  // namespace

LogScope::LogScope(LogFields fields)
    : fields_(std::move(fields)), outer_(innermost), before_(innermost) {
  innermost = this;
}

LogScope::LogScope(const LogScope* scope) : outer_(scope), before_(innermost) { innermost = this; }

LogScope::~LogScope() { innermost = before_; }

const LogScope* LogScope::Innermost() { return innermost; }

LogFields LogScope::Current() {
  LogFields fields;
  for (const LogScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    const LogFields& more = scope->fields_;
    // Do not combine one job with the generation of another.
    if (fields.generation == 0 && (fields.job.empty() || fields.job == more.job)) {
      fields.generation = more.generation;
    }
    TakeIfEmpty(more.job, fields.job);
    TakeIfEmpty(more.member, fields.member);
    TakeIfEmpty(more.method, fields.method);
    TakeIfEmpty(more.resource, fields.resource);
    TakeIfEmpty(more.caller, fields.caller);
    TakeIfEmpty(more.address, fields.address);
    TakeIfEmpty(more.result, fields.result);
  }
  TakeIfEmpty(ProcessMember(), fields.member);
  return fields;
}

void LogScope::SetProcessMember(const std::string& member) { ProcessMember() = member; }

}  // namespace muster
