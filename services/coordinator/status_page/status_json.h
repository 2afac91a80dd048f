// JSON of what the status page shows.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "services/coordinator/records/metric_series.h"

namespace muster {

// As `muster -o json` has it, on one line: fields named as in the proto, 64-bit numbers in quotes,
// what is unset left out. What has no JSON (a time that is none, of an old store) is an error as
// below.
std::string ToJson(const google::protobuf::Message& message);

// {"first_step":0,"last_step":999,"series":[{"name":"loss","points":[[0,9,0.1,0.9,0.2],...]}]}: of
// each point its first step, its last step, and the smallest, largest and last value. null: it was
// not finite.
std::string ToJson(const JobSeries& series);

// {"what":"job 'x' does not exist","reason":"JOB_NOT_FOUND","try":"..."}
std::string ToJson(const absl::Status& error);

// With its quotes. What is not UTF-8 becomes U+FFFD.
std::string Quoted(absl::string_view text);

}  // namespace muster
