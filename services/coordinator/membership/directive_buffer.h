// A directive as it goes onto the wire.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "services/coordinator/membership/member_directive.h"

namespace muster {

// The v1::Directive, with its plan. The plan's bytes are not copied: the buffer shares them, so a
// plan lies in memory once however many members it is being sent to.
grpc::ByteBuffer Serialize(const MemberDirective& told);

}  // namespace muster
