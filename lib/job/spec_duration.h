// Converts durations of a job spec between protobuf and Abseil.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

namespace muster {

inline absl::Duration SpecDuration(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

// A duration that does not fit into a protobuf Duration is cut to the nearest that does.
inline google::protobuf::Duration SpecDuration(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

}  // namespace muster
