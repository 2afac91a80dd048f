// A directive of the coordinator to one member, and its form on the wire.
#pragma once

#include <memory>
#include <string>

#include "proto/muster/v1/coordinator.pb.h"

namespace grpc {
class ByteBuffer;
}

namespace muster {

// The plan is serialized once for all members, because it may have megabytes and go to thousands of
// them.
struct MemberDirective {
  v1::Directive directive;                  // a Prepare in it has no plan
  std::shared_ptr<const std::string> plan;  // the serialized plan of a Prepare; otherwise null
};

// Serializes the directive with its plan. The buffer shares the plan's bytes, so a plan is in
// memory once, however many members it is sent to.
grpc::ByteBuffer Serialize(const MemberDirective& told);

// Returns the directive with its plan as one message, for tests and benchmarks.
v1::Directive Whole(const MemberDirective& told);

}  // namespace muster
