// JSON for the status page.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "services/coordinator/records/metric_series.h"

namespace muster {

// Converts a message as `muster -o json` does, on one line: proto field names, 64-bit numbers in
// quotes, no unset fields. A message without a JSON form (an invalid time from an old store)
// becomes an error as below.
std::string ToJson(const google::protobuf::Message& message);

// Adds "verdict":["...","..."] to the JSON of a timing, unless there are no lines.
std::string ToJson(const v1::ReadJobTimingResponse& timing,
                   const std::vector<std::string>& verdict);

// {"first_step":0,"last_step":999,"series":[{"name":"loss","points":[[0,9,0.1,0.9,0.2],...]}]}:
// each point has its first step, last step, and the smallest, largest and last value. A non-finite
// value is null.
std::string ToJson(const JobSeries& series);

// {"what":"job 'x' does not exist","reason":"JOB_NOT_FOUND","try":"..."}
std::string ToJson(const absl::Status& error);

// Quotes and escapes a text. Invalid UTF-8 becomes U+FFFD.
std::string Quoted(absl::string_view text);

}  // namespace muster
