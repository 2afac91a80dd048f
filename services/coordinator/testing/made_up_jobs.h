// The job and the members that most tests of the coordinator need.
#pragma once

#include <glog/logging.h>

#include <string>

#include "google/protobuf/text_format.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// Returns the spec of a small job "line". `more`: further fields in text format; they replace
// fields of the same name.
inline v1::JobSpec LinearSpec(const std::string& more = "") {
  v1::JobSpec spec;
  CHECK(google::protobuf::TextFormat::MergeFromString(
      R"pb(
        name: "line"
        model { zoo { name: "linear" } }
        data {
          linear { samples: 64 }
          batch_size: 8
        }
        training {
          steps: 10
          optimizer { sgd { learning_rate: 0.1 } }
        }
      )pb",
      &spec));
  CHECK(google::protobuf::TextFormat::MergeFromString(more, &spec)) << more;
  return spec;
}

// Returns the Hello of a worker if `member` begins with "w", else of a ps. `incarnation`: of its
// process; "": "<member>-1".
inline v1::Hello HelloOf(const std::string& member, const std::string& incarnation = "") {
  v1::Hello hello;
  hello.set_member(member);
  hello.set_role(member.starts_with("w") ? v1::WORKER : v1::PS);
  hello.set_incarnation(incarnation.empty() ? member + "-1" : incarnation);
  if (hello.role() == v1::PS) hello.add_addresses("address of " + member);
  return hello;
}

}  // namespace muster
