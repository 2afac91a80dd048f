// What a job's record says of its last checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "proto/muster/v1/job.pb.h"

namespace muster {

// Its step; -1: the job has none.
int64_t CommittedStep(const v1::Job& record);

// The place at which the job goes on after its shards were lost: its last checkpoint, "net-1@50",
// or "its beginning (it has no checkpoint)".
std::string WhereItGoesOn(const v1::Job& record);

// How another job goes on from the last checkpoint of this one, which has ended, or that it has
// none. Follows a sentence's last word.
std::string AdviceToResume(const v1::Job& record);

}  // namespace muster
