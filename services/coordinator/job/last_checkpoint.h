// What a job's record says of its last checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Its step; -1: the job has none.
int64_t CommittedStep(const v1::Job& record);

// The checkpoint at which the job goes on after its shards were lost, "net-1@50", or "where it
// began".
std::string WhereItGoesOn(const v1::Job& record);

// Of a job that has ended, how another one goes on where it was, to follow a sentence's last word;
// "": it has left no checkpoint.
std::string AdviceToResume(const v1::Job& record);

}  // namespace muster
