#include "services/coordinator/api/reflection_service.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/muster/v1/coordinator.grpc.pb.h"
#include "proto/muster/v1/store.pb.h"

namespace muster::reflection_service_test {
namespace {

using grpc::reflection::v1alpha::ServerReflection;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Request = ReflectionService::Request;
using Response = ReflectionService::Response;

class ReflectionServiceTest : public ::testing::Test {
 protected:
  std::unique_ptr<ReflectionService> Make(CallWatch* watch) {
    return std::make_unique<ReflectionService>(
        std::vector<std::string>{"muster.v1.JobService",
                                 "grpc.reflection.v1alpha.ServerReflection"},
        CallGate{&access_, &admission_, watch});
  }
  Response AskSymbol(const std::string& symbol) {
    Request request;
    request.set_file_containing_symbol(symbol);
    return service_->Answer(request);
  }
  void ExpectNotFound(const Response& response) {
    EXPECT_EQ(response.error_response().error_code(), grpc::StatusCode::NOT_FOUND)
        << response.ShortDebugString();
  }

  Admission admission_;
  const Access access_ = Access::Open();
  CallWatch watch_{{}};
  const std::unique_ptr<ReflectionService> service_ = Make(&watch_);
};

TEST_F(ReflectionServiceTest, NamesTheServices) {
  Request request;
  request.set_list_services("*");
  request.set_host("here");

  const Response response = service_->Answer(request);

  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  EXPECT_THAT(names,
              ElementsAre("muster.v1.JobService", "grpc.reflection.v1alpha.ServerReflection"));
  EXPECT_EQ(response.valid_host(), "here");
  EXPECT_EQ(response.original_request().list_services(), "*");
}

// Imports come before the files that use them, because a client adds the files to its descriptor
// pool in the order of the answer.
TEST_F(ReflectionServiceTest, AFileComesWithItsImports) {
  for (const char* symbol : {"muster.v1.JobService", "muster.v1.JobService.CreateJob",
                             "muster.v1.JobSpec", "google.rpc.ErrorInfo"}) {
    const Response response = AskSymbol(symbol);
    google::protobuf::DescriptorPool pool;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      ASSERT_TRUE(file.ParseFromString(bytes));
      ASSERT_NE(pool.BuildFile(file), nullptr) << symbol << ": " << file.name();
    }
    EXPECT_NE(pool.FindFileContainingSymbol(symbol), nullptr) << symbol;
  }
  Request request;
  request.set_file_by_filename("proto/muster/v1/job.proto");
  EXPECT_GE(service_->Answer(request).file_descriptor_response().file_descriptor_proto_size(), 2);
}

TEST_F(ReflectionServiceTest, HidesWhatIsNotServed) {
  ExpectNotFound(AskSymbol("muster.v1.None"));
  ExpectNotFound(AskSymbol(""));
  // This message is linked in but not part of the API.
  ExpectNotFound(AskSymbol(v1::StoredToken::descriptor()->full_name()));
  Request request;
  request.set_file_by_filename("proto/muster/v1/store.proto");
  ExpectNotFound(service_->Answer(request));
}

TEST_F(ReflectionServiceTest, AnswersThatThereAreNoExtensions) {
  Request request;
  request.set_all_extension_numbers_of_type("muster.v1.Job");
  const Response numbers = service_->Answer(request);
  EXPECT_EQ(numbers.all_extension_numbers_response().base_type_name(), "muster.v1.Job");
  EXPECT_EQ(numbers.all_extension_numbers_response().extension_number_size(), 0);
  request.mutable_file_containing_extension()->set_containing_type("muster.v1.Job");
  request.mutable_file_containing_extension()->set_extension_number(1);
  ExpectNotFound(service_->Answer(request));
}

TEST_F(ReflectionServiceTest, AnEmptyRequestIsInvalid) {
  EXPECT_EQ(service_->Answer(Request()).error_response().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ReflectionServiceTest, AnIdleStreamEnds) {
  CallWatch watch({.interval = absl::Milliseconds(10), .stall_max = absl::Milliseconds(50)});
  const auto service = Make(&watch);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(service.get());
  auto server = builder.BuildAndStart();
  const auto stub = ServerReflection::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto stream = stub->ServerReflectionInfo(&context);
  Request request;
  request.set_list_services("*");
  Response response;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_THAT(response.ShortDebugString(), HasSubstr("muster.v1.JobService"));

  EXPECT_FALSE(stream->Read(&response)) << "it is asked nothing more";
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
  server.reset();  // the client sees the end of a call before the server has released its ticket
  EXPECT_EQ(admission_.under_way(CallKind::kReflection), 0);
}

}  // namespace
}  // namespace muster::reflection_service_test
