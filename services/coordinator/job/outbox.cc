#include "services/coordinator/job/outbox.h"

namespace muster {

bool Outbox::IsDue(const std::string& member, const v1::Directive& directive, absl::Time now) {
  Sent& last = sent_[member];
  const uint64_t snapshot = directive.snapshot().snapshot();
  const bool same = last.kind == directive.kind_case() && last.snapshot == snapshot;
  if (same && now - last.time < kResend) return false;
  last = {.kind = directive.kind_case(), .snapshot = snapshot, .time = now};
  return true;
}

}  // namespace muster
