// What the coordinator tells one member.
#pragma once

#include <memory>
#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

// A plan may have megabytes and goes to thousands of members: it is serialised once for all of
// them.
struct MemberDirective {
  v1::Directive directive;                  // a Prepare in it has no plan
  std::shared_ptr<const std::string> plan;  // a Prepare's, serialised; null for any other
};

// The same as one message, for who has no wire: tests and benchmarks.
v1::Directive Whole(const MemberDirective& told);

}  // namespace muster
