// What every Store promises, as tests: an implementation's own test instantiates StoreConformance
// with a way to make one.
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

// Where stores are made, and a hand that reaches past them. One for each test.
class StoreBench {
 public:
  virtual ~StoreBench() = default;
  // The same store at every call. Does not wait for another who has it.
  virtual absl::StatusOr<std::unique_ptr<Store>> Open() = 0;
  // Makes bytes of a job unreadable; nobody has the store open.
  virtual void SpoilRecord(uint64_t job) = 0;
  virtual void SpoilPlan(uint64_t job) = 0;
  virtual void SpoilOrigin(uint64_t job) = 0;  // of it at least the graph
  virtual void SpoilFirstEvent(uint64_t job) = 0;
  virtual void SpoilCheckpoint(uint64_t job, int64_t step) = 0;
  virtual void SpoilToken(const std::string& id) = 0;
  // That are kept, of all jobs; a store may be open.
  virtual int CountPlans() = 0;
};

class StoreConformance
    : public ::testing::TestWithParam<std::function<std::unique_ptr<StoreBench>()>> {
 public:
  static Store::Submission Submission(const std::string& request_id = "");
  // A transition to RUNNING with a new generation and a checkpoint of step 20.
  static absl::Status Advance(Store& store, v1::Job& record);
  static absl::Status ImportAll(Store& store, const std::vector<v1::BackupRecord>& records);

 protected:
  std::unique_ptr<Store> Open();

  const std::unique_ptr<StoreBench> bench_ = GetParam()();
};

}  // namespace muster
