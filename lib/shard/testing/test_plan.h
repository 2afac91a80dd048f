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
  std::vector<int64_t> parameters = {7};  // elements of each parameter
  std::vector<int> frozen;                // parameters
  bool weight_decay = false;              // of all parameters
  int64_t chunk_bytes = 1024;
  int workers = 2;
  int shards = 1;  // all on `member`, shard i on thread i % threads; allreduce: on worker i
  int threads = 1;
  std::string member = "ps-0";
  bool has_replicas = false;  // shard i is on ps i, and its replica on the next one
  uint64_t job_number = 7;
  uint32_t generation = 1;
  int64_t first_step = 0;
  int64_t checkpoint_every = 0;
  std::string restore;
  v1::Optimizer optimizer = PlainSgd(0.5);
  v1::Precision precision = v1::FP32;
  double clip_norm = 0;      // 0: no clipping
  v1::SyncSpec sync;         // local_sgd: every slot gets its own chunk
  bool has_program = false;  // model.external

  static v1::Optimizer PlainSgd(double learning_rate);
};

// Makes a plan with workers "worker-0", ... of one sample each, and parameters "p0", ... with
// normally distributed values.
v1::JobPlan MakeTestPlan(const TestPlanOptions& options);

v1::SyncSpec SyncOf(v1::SyncMode mode);

// Makes the header of a push of `rank`. Its length is the chunk's. With a program, it names the
// learning rate 0.5 and the weight 1.
WireHeader PushHeader(const v1::JobPlan& plan, int64_t step, int chunk, int rank);
WireHeader FetchHeader(const v1::JobPlan& plan, int64_t step, int chunk, int rank);

}  // namespace muster
