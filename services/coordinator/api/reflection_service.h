// gRPC server reflection (v1alpha): describes the API to grpcurl and to clients without our protos.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "google/protobuf/descriptor.h"
#include "proto/third_party/grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "services/coordinator/api/call_gate.h"

namespace muster {

// Requires the read permission, as other methods do; gRPC's own plugin has no access control.
// Describes only the files of the named services, their imports, and those of error details. Holds
// no thread. A stream ends after limits::kStreamStallMax, however many requests it has.
class ReflectionService final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

  // `services` are full names; each must be linked into this program.
  ReflectionService(std::vector<std::string> services, const CallGate& gate);

  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override;

  // Answers one message of a stream. Errors are in error_response.
  Response Answer(const Request& request) const;

 private:
  class Stream;

  using File = google::protobuf::FileDescriptor;

  void Tell(const File* file);
  // Adds `file` and its imports to the response. Adds NOT_FOUND with `what` if the file is null or
  // not public.
  void AnswerFile(const File* file, const std::string& what, Response& response) const;

  const std::vector<std::string> services_;
  const CallGate gate_;
  absl::flat_hash_set<const File*> told_;
};

}  // namespace muster
