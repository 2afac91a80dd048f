#include "services/coordinator/job/job_update.h"

#include <gtest/gtest.h>

#include "absl/strings/string_view.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::job_update_test {
namespace {

TEST(JobUpdateTest, TakesOverTheNamedFieldsAndDescribesThem) {
  v1::JobSpec before, wanted;
  before.mutable_checkpoint()->set_keep_last(3);
  before.set_priority(1);
  wanted.set_priority(-2);
  wanted.set_chunk_bytes(1024);
  (*wanted.mutable_labels())["team"] = "vision";
  (*wanted.mutable_annotations())["why"] = "so";
  wanted.mutable_checkpoint()->set_keep_last(5);

  v1::JobSpec after = before;
  TakeOver("priority", wanted, after);
  EXPECT_EQ(DescribeUpdate(before, after), "priority 1 -> -2");
  for (const absl::string_view path : kUpdatable) TakeOver(path, wanted, after);
  EXPECT_EQ(DescribeUpdate(before, after),
            "priority 1 -> -2, labels, annotations, checkpoint.keep_last 3 -> 5");
  EXPECT_EQ(after.chunk_bytes(), 0) << "cannot change";
  EXPECT_EQ(DescribeUpdate(after, after), "");

  (*after.mutable_labels())["team"] = "text";
  EXPECT_EQ(DescribeUpdate(wanted, after), "labels") << "the value differs";
  wanted.clear_checkpoint();
  TakeOver("checkpoint.keep_last", wanted, after);
  EXPECT_FALSE(after.checkpoint().has_keep_last()) << "unset in the request";
}

}  // namespace
}  // namespace muster::job_update_test
