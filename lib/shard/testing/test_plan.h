// Plans and messages for tests of the parameter server.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/transport/core/wire.h"
#include "proto/muster/v1/job.pb.h"
#include "proto/muster/v1/plan.pb.h"

namespace muster {

struct TestPlanOptions {
  std::vector<int64_t> parameters = {7};  // elements of each
  int64_t chunk_bytes = 1024;
  int workers = 2;
  int shards = 1;  // all on `member`, shard i on thread i % threads
  int threads = 1;
  std::string member = "ps-0";
  uint64_t job_number = 7;
  uint32_t generation = 1;
  int64_t first_step = 0;
  int64_t checkpoint_every = 0;
  std::string restore;
  v1::Optimizer optimizer = PlainSgd(0.5);
  v1::Precision precision = v1::FP32;
  double clip_norm = 0;  // 0: none
  v1::SyncSpec sync;     // local_sgd: a chunk per slot

  static v1::Optimizer PlainSgd(double learning_rate);
};

// Workers "worker-0", ... of one sample each; parameters "p0", ... of normally distributed values,
// without weight decay.
v1::JobPlan MakeTestPlan(const TestPlanOptions& options);

// The header of a push of `rank`; its length is the chunk's.
WireHeader PushHeader(const v1::JobPlan& plan, int64_t step, int chunk, int rank);
WireHeader FetchHeader(const v1::JobPlan& plan, int64_t step, int chunk, int rank);

}  // namespace muster
