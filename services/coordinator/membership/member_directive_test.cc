#include "services/coordinator/membership/member_directive.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "grpcpp/support/byte_buffer.h"

namespace muster::member_directive_test {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

v1::JobPlan Plan(int workers) {
  v1::JobPlan plan;
  plan.set_job("jobs/net-1");
  for (int i = 0; i < workers; ++i) plan.add_workers()->set_member(absl::StrCat("worker-", i));
  return plan;
}

MemberDirective Prepare(const v1::JobPlan& plan) {
  MemberDirective told;
  told.directive.set_term(3);
  told.directive.set_job("net-1");
  told.directive.set_generation(7);
  told.directive.mutable_prepare();
  told.plan = std::make_shared<const std::string>(plan.SerializeAsString());
  return told;
}

TEST(MemberDirectiveTest, SerializesAPlanLikeAFieldOfTheMessage) {
  for (const int workers : {0, 1, 20, 2000, 200000}) {
    const MemberDirective told = Prepare(Plan(workers));
    v1::Directive read;
    ASSERT_TRUE(read.ParseFromString(BytesOf(Serialize(told)))) << workers;
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(read, Whole(told))) << workers;
    EXPECT_EQ(read.prepare().plan().workers_size(), workers);
    EXPECT_EQ(read.term(), 3);
    EXPECT_EQ(read.generation(), 7);
  }
}

TEST(MemberDirectiveTest, SharesThePlanWithoutACopy) {
  MemberDirective told = Prepare(Plan(2000));
  const std::weak_ptr<const std::string> plan = told.plan;
  {
    grpc::ByteBuffer one = Serialize(told);
    grpc::ByteBuffer other = Serialize(told);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(told.plan->data());
    told.plan.reset();
    for (const grpc::ByteBuffer* buffer : {&one, &other}) {
      std::vector<grpc::Slice> slices;
      ASSERT_TRUE(buffer->Dump(&slices).ok());
      EXPECT_EQ(slices.back().begin(), bytes);
    }
  }
  EXPECT_TRUE(plan.expired()) << "no buffer uses the plan any more";
}

TEST(MemberDirectiveTest, SerializesADirectiveWithoutAPlan) {
  MemberDirective told;
  told.directive.set_job("net-1");
  told.directive.mutable_halt();
  EXPECT_EQ(BytesOf(Serialize(told)), told.directive.SerializeAsString());
}

}  // namespace
}  // namespace muster::member_directive_test
