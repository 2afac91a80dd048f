// gRPC server reflection (v1alpha): what the API is, for grpcurl and clients without our protos.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "google/protobuf/descriptor.h"
#include "proto/third_party/grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "services/coordinator/api/access.h"
#include "services/coordinator/common/admission.h"
#include "services/coordinator/common/call_watch.h"

namespace muster {

// Answers who may read, as any method does; gRPC's own plugin asks nobody. Only files of the named
// services are told, with what they import, and that of error details. Holds no thread; a stream
// ends after limits::kStreamStallMax, however much it asks.
class ReflectionService final
    : public grpc::reflection::v1alpha::ServerReflection::CallbackService {
 public:
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;

  // `services` are full names, each linked into this program. All pointers outlive the service.
  ReflectionService(std::vector<std::string> services, Admission* admission, const Access* access,
                    CallWatch* watch);

  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override;

  // The answer to one message of a stream. What is wrong with it is told in error_response.
  Response Answer(const Request& request) const;

 private:
  class Stream;

  using File = google::protobuf::FileDescriptor;

  void Tell(const File* file);
  // `file` and what it imports, into the response; NOT_FOUND with `what` if it is null or not told.
  void AnswerFile(const File* file, const std::string& what, Response& response) const;

  const std::vector<std::string> services_;
  Admission* const admission_;
  const Access* const access_;
  CallWatch* const watch_;
  absl::flat_hash_set<const File*> told_;
};

}  // namespace muster
