// Trains a job with trainers and fake ps of one process, for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/exchange/fake_ps.h"
#include "proto/muster/v1/coordinator.pb.h"

namespace muster {

struct Trained {
  std::vector<std::vector<float>> parameters;
  std::vector<v1::JobReport> reports;  // by rank
  std::vector<double> flops;           // by rank, from the metric
};

// Trains a job with one thread per worker, each with `devices` ("cpu", "cuda:0"). A failure is one
// of the test.
Trained TrainOn(const FakePs::Options& options, int64_t total_steps,
                const std::vector<std::string>& devices, const std::string& index_folder = "");

// Trains a job with `devices` devices of the CPU for each worker.
Trained Train(const FakePs::Options& options, int64_t total_steps, int devices,
              const std::string& index_folder = "");

}  // namespace muster
