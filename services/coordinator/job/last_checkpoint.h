// What a job's record says of its last checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Its step; -1: the job has none.
int64_t CommittedStep(const v1::Job& record);

// Where the job goes on once what its shards hold is gone: "jobs/net-1/checkpoints/50".
std::string WhereItGoesOn(const v1::Job& record);

// Of a job that has ended, how another one goes on where it was, to follow a sentence's last word;
// "": it has left no checkpoint.
std::string AdviceToResume(const v1::Job& record);

}  // namespace muster
