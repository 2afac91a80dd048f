// Tests the contract of Store. The test of each implementation instantiates StoreConformance with a
// function that makes a StoreBench.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/coordinator/store/store.h"

namespace muster {

// Creates stores, and changes their data directly. There is one for each test.
class StoreBench {
 public:
  virtual ~StoreBench() = default;
  // Opens the same store at every call. Does not wait for another opener.
  virtual absl::StatusOr<std::unique_ptr<Store>> Open() = 0;
  // Make bytes of a job unreadable. Require: the store is not open.
  virtual void SpoilRecord(uint64_t job) = 0;
  virtual void SpoilPlan(uint64_t job) = 0;
  virtual void SpoilOrigin(uint64_t job) = 0;  // at least the graph of it
  virtual void SpoilFirstEvent(uint64_t job) = 0;
  virtual void SpoilCheckpoint(uint64_t job, int64_t step) = 0;
  virtual void SpoilToken(const std::string& id) = 0;
  // Returns the number of stored plans of all jobs. The store may be open.
  virtual int CountPlans() = 0;
};

class StoreConformance
    : public ::testing::TestWithParam<std::function<std::unique_ptr<StoreBench>()>> {
 public:
  static Store::Submission Submission(const std::string& request_id = "");
  // Commits a transition to RUNNING with a new generation and a checkpoint of step 20.
  static absl::Status Advance(Store& store, v1::Job& record);
  static absl::Status ImportAll(Store& store, const std::vector<v1::BackupRecord>& records);

 protected:
  std::unique_ptr<Store> Open();

  const std::unique_ptr<StoreBench> bench_ = GetParam()();
};

}  // namespace muster
