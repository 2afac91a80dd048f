#include "services/coordinator/scheduling/memory_check.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::memory_check_test {
namespace {

using ::testing::HasSubstr;

// One parameter of 1 GiB with Adam, on 2 ps: each holds 512 MiB of values, of each slot and of
// sums.
class MemoryCheckTest : public ::testing::Test {
 protected:
  MemoryCheckTest() {
    v1::JobSpec& spec = *job_.mutable_spec();
    spec.mutable_data()->set_batch_size(8);
    spec.mutable_training()->mutable_optimizer()->mutable_adam()->set_learning_rate(0.1);
    spec.mutable_sync()->set_mode(v1::BSP);
    spec.set_chunk_bytes(1 << 22);
    spec.mutable_resources()->set_ps(2);
    spec.mutable_resources()->mutable_workers()->set_min(2);
    v1::Parameter& parameter = *graph_.add_parameters();
    parameter.set_name("weight");
    parameter.add_shape(1 << 28);
  }

  void AddPs(const std::string& name, int64_t memory_bytes) {
    AttachedMember& member = members_[name];
    member.attached = true;
    member.hello.set_member(name);
    member.hello.set_role(v1::PS);
    member.hello.set_memory_bytes(memory_bytes);
    member.hello.add_addresses(name);
  }
  std::string Warning() const { return MemoryWarning(job_, graph_, members_); }

  v1::Job job_;
  v1::Graph graph_;
  absl::btree_map<std::string, AttachedMember> members_;
};

TEST_F(MemoryCheckTest, WarnsIfTooFewPsAreLargeEnough) {
  AddPs("ps-0", int64_t{8} << 30);
  AddPs("ps-1", int64_t{1} << 30);

  EXPECT_THAT(Warning(), HasSubstr("resources.ps: too few ps of the fleet are large enough: its "
                                   "shards need up to "));
  EXPECT_THAT(Warning(), HasSubstr(" GiB on each of 2 ps with 2 workers; the largest, ps-0, has "
                                   "8.0 GiB (--memory_bytes). Start ps with more memory, or set "
                                   "more ps"));
}

TEST_F(MemoryCheckTest, OnePsThatIsTooSmallDoesNotMatterIfOthersAreLargeEnough) {
  AddPs("ps-0", int64_t{8} << 30);
  AddPs("ps-1", 64);
  AddPs("ps-2", int64_t{8} << 30);

  EXPECT_EQ(Warning(), "");
}

TEST_F(MemoryCheckTest, PsThatAreNotThereOrAreLeavingAreNotJudged) {
  EXPECT_EQ(Warning(), "");
  AddPs("ps-0", 64);
  EXPECT_EQ(Warning(), "") << "the job needs two";
  AddPs("ps-1", 64);
  EXPECT_NE(Warning(), "");
  members_["ps-1"].leaving = true;
  EXPECT_EQ(Warning(), "");
}

TEST_F(MemoryCheckTest, APsThatDoesNotReportItsMemoryHasEnough) {
  AddPs("ps-0", 0);
  AddPs("ps-1", 0);

  EXPECT_EQ(Warning(), "");
}

// The workers of an allreduce job hold its shards.
TEST_F(MemoryCheckTest, AllreduceNeedsNoPs) {
  AddPs("ps-0", 64);
  AddPs("ps-1", 64);
  job_.mutable_spec()->mutable_sync()->set_mode(v1::ALLREDUCE);

  EXPECT_EQ(Warning(), "");
}

// A parameter takes 36 bytes, and three gradients of each worker: 33 GiB in all.
TEST_F(MemoryCheckTest, LocalSgdNeedsThreeGradientsOfEachWorker) {
  AddPs("ps-0", int64_t{30} << 30);
  v1::JobSpec& spec = *job_.mutable_spec();
  spec.mutable_sync()->set_mode(v1::LOCAL_SGD);
  spec.mutable_resources()->set_ps(1);
  spec.mutable_resources()->mutable_workers()->set_min(8);

  EXPECT_THAT(Warning(), HasSubstr("on each of 1 ps with 8 workers; the largest, ps-0, has 30.0"));
  members_["ps-0"].hello.set_memory_bytes(int64_t{34} << 30);
  EXPECT_EQ(Warning(), "");
}

}  // namespace
}  // namespace muster::memory_check_test
