#include "services/coordinator/api/reflection_service.h"

#include <glog/logging.h>

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.pb.h"
#include "lib/status/grpc_status.h"
#include "proto/third_party/google/rpc/error_details.pb.h"

namespace muster {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

void SetError(grpc::StatusCode code, const std::string& message,
              ReflectionService::Response& response) {
  response.mutable_error_response()->set_error_code(code);
  response.mutable_error_response()->set_error_message(message);
}

// Appends a file after the files that it imports.
void Append(const FileDescriptor* file, absl::flat_hash_set<const FileDescriptor*>& appended,
            grpc::reflection::v1alpha::FileDescriptorResponse& files) {
  if (!appended.insert(file).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) Append(file->dependency(i), appended, files);
  FileDescriptorProto text;
  file->CopyTo(&text);
  files.add_file_descriptor_proto(text.SerializeAsString());
}

}  // namespace

// One stream: reads a message, answers it, and reads the next one. Deletes itself when gRPC is done
// with it.
class ReflectionService::Stream final : public grpc::ServerBidiReactor<Request, Response> {
 public:
  Stream(const ReflectionService* service, grpc::CallbackServerContext* context,
         absl::StatusOr<AdmittedCall> call)
      : service_(*service),
        call_(std::move(call)),
        guard_(service->gate_.Watch(context, service->gate_.watch->stall_max())) {
    if (call_.ok()) {
      StartRead(&request_);
    } else {
      Finish(ToGrpc(call_.status()));
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);  // the client has no more requests, or is gone
    response_ = service_.Answer(request_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const ReflectionService& service_;
  const absl::StatusOr<AdmittedCall> call_;
  Request request_;
  Response response_;
  CallWatch::Guard guard_;  // never advanced: it limits the whole stream
};

ReflectionService::ReflectionService(std::vector<std::string> services, const CallGate& gate)
    : services_(std::move(services)), gate_(gate) {
  for (const std::string& service : services_) {
    const auto* const descriptor = Pool().FindServiceByName(service);
    CHECK(descriptor != nullptr) << service << " is not linked in";
    Tell(descriptor->file());
  }
  // Clients need this message to print error details, and no method refers to it.
  Tell(google::rpc::ErrorInfo::descriptor()->file());
}

void ReflectionService::Tell(const File* file) {
  if (!told_.insert(file).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) Tell(file->dependency(i));
}

grpc::ServerBidiReactor<ReflectionService::Request, ReflectionService::Response>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext* context) {
  return new Stream(
      this, context,
      gate_.Admit(*context, "ServerReflectionInfo", Permission::kRead, CallKind::kReflection));
}

ReflectionService::Response ReflectionService::Answer(const Request& request) const {
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename: {
      const std::string& name = request.file_by_filename();
      AnswerFile(Pool().FindFileByName(name), absl::StrCat("file '", name, "'"), response);
      break;
    }
    case Request::kFileContainingSymbol: {
      const std::string& name = request.file_containing_symbol();
      AnswerFile(Pool().FindFileContainingSymbol(name), absl::StrCat("symbol '", name, "'"),
                 response);
      break;
    }
    // The messages of this API are proto3 and have no extensions.
    case Request::kFileContainingExtension:
      SetError(grpc::StatusCode::NOT_FOUND, "no message of this API has extensions", response);
      break;
    case Request::kAllExtensionNumbersOfType:
      response.mutable_all_extension_numbers_response()->set_base_type_name(
          request.all_extension_numbers_of_type());
      break;
    case Request::kListServices:
      for (const std::string& service : services_) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      SetError(grpc::StatusCode::INVALID_ARGUMENT,
               "the request asks nothing: set one field of message_request", response);
      break;
  }
  return response;
}

void ReflectionService::AnswerFile(const File* file, const std::string& what,
                                   Response& response) const {
  if (file == nullptr || !told_.contains(file)) {
    return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat("no ", what, " is served"), response);
  }
  absl::flat_hash_set<const FileDescriptor*> appended;
  Append(file, appended, *response.mutable_file_descriptor_response());
}

}  // namespace muster
