// Serializes a directive for the wire.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "services/coordinator/membership/member_directive.h"

namespace muster {

// Serializes the directive with its plan. The buffer shares the plan's bytes, so a plan is in
// memory once, however many members it is sent to.
grpc::ByteBuffer Serialize(const MemberDirective& told);

}  // namespace muster
