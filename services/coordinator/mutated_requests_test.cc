// Calls every method of the coordinator with random messages made from the protos. It must answer
// and keep running.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/dynamic_message.h"
#include "grpcpp/grpcpp.h"
#include "lib/fleet/channel.h"
#include "lib/status/status.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "services/coordinator/testing/coordinator_process.h"
#include "services/coordinator/testing/made_up_jobs.h"
#include "services/coordinator/testing/raw_call.h"
#include "services/coordinator/testing/served_methods.h"

namespace muster::mutated_requests_test {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::Reflection;

constexpr int kThreads = 4;
constexpr int kDepthMax = 7;
constexpr int64_t kResidentKilobytesMax = 1 << 20;

// Returns the number of requests. A manual run has 100,000: see docs/testing.md.
int Requests() {
  const char* wanted = std::getenv("REQUESTS");
  return wanted != nullptr ? std::atoi(wanted) : 4'000;
}

class Chance {
 public:
  explicit Chance(uint32_t seed) : random_(seed) {}
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  template <typename T>
  const T& Of(const std::vector<T>& all) {
    return all[Below(all.size())];
  }
  uint64_t Bits() { return random_() | static_cast<uint64_t>(random_()) << 32; }

 private:
  std::mt19937 random_;
};

const std::vector<std::string>& Texts() {
  static const auto* const kTexts = new std::vector<std::string>{"",
                                                                 "line",
                                                                 "line-1",
                                                                 "jobs/line-1",
                                                                 "line-1@4",
                                                                 "jobs/line-1/checkpoints/4",
                                                                 "jobs/",
                                                                 "../../etc/passwd",
                                                                 "/dev/zero",
                                                                 "/proc/self/mem",
                                                                 "/",
                                                                 ".",
                                                                 "linear",
                                                                 "mlp",
                                                                 "gpt",
                                                                 "resnet50",
                                                                 "w-0",
                                                                 "p-0",
                                                                 "\n",
                                                                 std::string("a\0b", 3),
                                                                 "NaN",
                                                                 "%s%n",
                                                                 "-1",
                                                                 "t-00000000",
                                                                 "layers",
                                                                 "hidden",
                                                                 std::string(70'000, 'x'),
                                                                 std::string(300, '/')};
  return *kTexts;
}
const std::vector<int64_t>& Numbers() {
  static const auto* const kNumbers = new std::vector<int64_t>{0,
                                                               1,
                                                               -1,
                                                               2,
                                                               3,
                                                               4,
                                                               7,
                                                               8,
                                                               64,
                                                               1000,
                                                               4096,
                                                               1 << 20,
                                                               65536,
                                                               std::numeric_limits<int32_t>::max(),
                                                               std::numeric_limits<int32_t>::min(),
                                                               std::numeric_limits<int64_t>::max(),
                                                               std::numeric_limits<int64_t>::min()};
  return *kNumbers;
}
const std::vector<double>& Reals() {
  static const auto* const kReals =
      new std::vector<double>{0,
                              1,
                              -1,
                              0.1,
                              0.5,
                              1e-300,
                              1e300,
                              -0.0,
                              std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::infinity()};
  return *kReals;
}

void Fill(Message& message, Chance& chance, int depth);

void Set(Message& message, const FieldDescriptor& field, Chance& chance, int depth) {
  const Reflection& reflection = *message.GetReflection();
  const bool many = field.is_repeated();
  auto put = [&](auto set, auto add, auto value) {
    many ? (reflection.*add)(&message, &field, value) : (reflection.*set)(&message, &field, value);
  };
  const int64_t number =
      chance.OneIn(4) ? static_cast<int64_t>(chance.Bits()) : chance.Of(Numbers());
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return put(&Reflection::SetInt32, &Reflection::AddInt32, static_cast<int32_t>(number));
    case FieldDescriptor::CPPTYPE_INT64:
      return put(&Reflection::SetInt64, &Reflection::AddInt64, number);
    case FieldDescriptor::CPPTYPE_UINT32:
      return put(&Reflection::SetUInt32, &Reflection::AddUInt32, static_cast<uint32_t>(number));
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(&Reflection::SetUInt64, &Reflection::AddUInt64, static_cast<uint64_t>(number));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return put(&Reflection::SetDouble, &Reflection::AddDouble, chance.Of(Reals()));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(&Reflection::SetFloat, &Reflection::AddFloat,
                 static_cast<float>(chance.Of(Reals())));
    case FieldDescriptor::CPPTYPE_BOOL:
      return put(&Reflection::SetBool, &Reflection::AddBool, chance.OneIn(2));
    case FieldDescriptor::CPPTYPE_ENUM:
      return put(&Reflection::SetEnumValue, &Reflection::AddEnumValue,
                 static_cast<int>(chance.Below(8)));
    case FieldDescriptor::CPPTYPE_STRING:
      return put(&Reflection::SetString, &Reflection::AddString, chance.Of(Texts()));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (depth >= kDepthMax) return;
      return Fill(many ? *reflection.AddMessage(&message, &field)
                       : *reflection.MutableMessage(&message, &field),
                  chance, depth + 1);
  }
}

// Sets some or all fields of a message.
void Fill(Message& message, Chance& chance, int depth) {
  const auto& type = *message.GetDescriptor();
  if (type.field_count() == 0) return;
  const uint64_t fields = chance.OneIn(3) ? static_cast<uint64_t>(type.field_count())
                                          : chance.Below(3) + (depth == 0 ? 1 : 0);
  for (uint64_t i = 0; i < fields; ++i) {
    Set(message,
        *type.field(static_cast<int>(chance.Below(static_cast<uint64_t>(type.field_count())))),
        chance, depth);
  }
}

// Fills in a valid job, so that mutations get past the first check.
void Sound(Message& message) {
  if (auto* create = dynamic_cast<v1::CreateJobRequest*>(&message)) {
    *create->mutable_spec() = LinearSpec();
  } else if (auto* report = dynamic_cast<v1::MemberReport*>(&message)) {
    *report->mutable_hello() = HelloOf("w-0");
    report->mutable_hello()->add_devices("cpu:0");
  }
}

std::string MutatedRequest(const MethodDescriptor& method, Chance& chance) {
  const Message* const prototype =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(method.input_type());
  const std::unique_ptr<Message> message(prototype->New());
  if (!chance.OneIn(4)) Sound(*message);
  for (uint64_t i = chance.Below(3); i > 0; --i) Fill(*message, chance, 0);
  std::string bytes;
  EXPECT_TRUE(message->SerializePartialToString(&bytes));
  if (chance.OneIn(8) && !bytes.empty()) {  // also invalid messages
    bytes[chance.Below(bytes.size())] ^= static_cast<char>(1 << chance.Below(8));
  }
  return bytes;
}

TEST(MutatedRequests, AreAnsweredAndHarmNoMember) {
  const CoordinatorProcess coordinator(
      {absl::StrCat("--data_roots=", ::testing::TempDir()), "--ended_jobs_keep=100"});
  const std::vector<const MethodDescriptor*> methods = ServedMethods();
  ASSERT_GT(methods.size(), 30);
  const auto seed = static_cast<uint32_t>(20261123);
  std::vector<std::thread> callers;
  for (int thread = 0; thread < kThreads; ++thread) {
    callers.emplace_back([&, thread] {
      Chance chance(seed + static_cast<uint32_t>(thread));
      grpc::GenericStub stub(DialCoordinator(coordinator.address()));
      for (int i = 0; i < Requests() / kThreads; ++i) {
        const MethodDescriptor& method = *chance.Of(methods);
        const std::string request = MutatedRequest(method, chance);
        // Cancels calls that wait for a state that no job will have, or for an unknown member:
        // watches, checkpoints, logs.
        const bool waits = method.name() == "WatchJob" || method.name() == "WatchJobs" ||
                           method.name() == "SaveCheckpoint" || method.name() == "ReadMemberLog";
        const absl::Status status =
            CallRaw(stub, PathOf(method), request, waits || chance.OneIn(20));
        // A status without a reason of ours comes from gRPC: the coordinator did not answer.
        ASSERT_FALSE(ReasonOf(status) == "UNAVAILABLE" || absl::IsDeadlineExceeded(status))
            << "seed " << seed << ", thread " << thread << ", request " << i << ": "
            << method.full_name() << ": " << status;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();

  const auto jobs = v1::JobService::NewStub(DialCoordinator(coordinator.address()));
  grpc::ClientContext context;
  v1::ListJobsResponse response;
  const grpc::Status listed = jobs->ListJobs(&context, v1::ListJobsRequest(), &response);
  EXPECT_TRUE(listed.ok()) << listed.error_message();
  EXPECT_LT(coordinator.Status("VmRSS:"), kResidentKilobytesMax);
}

}  // namespace
}  // namespace muster::mutated_requests_test
