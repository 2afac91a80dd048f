// Lists all methods that the coordinator serves, from the protos, for tests that must cover each.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "proto/muster/v1/access.pb.h"
#include "proto/muster/v1/admin.pb.h"
#include "proto/muster/v1/checkpoint.pb.h"
#include "proto/muster/v1/coordinator.pb.h"
#include "proto/third_party/grpc/reflection/v1alpha/reflection.pb.h"

namespace muster {

// Returns the methods of all services. A new proto file with services must be added here.
// member.proto is found by its name, because it has no messages.
inline std::vector<const google::protobuf::MethodDescriptor*> ServedMethods() {
  std::vector<const google::protobuf::MethodDescriptor*> methods;
  for (const auto* file :
       {v1::Hello::descriptor()->file(), v1::Checkpoint::descriptor()->file(),
        v1::AccessToken::descriptor()->file(), v1::BackupRequest::descriptor()->file(),
        grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()->file(),
        google::protobuf::DescriptorPool::generated_pool()->FindFileByName(
            "proto/muster/v1/member.proto")}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        methods.push_back(file->service(i)->method(j));
      }
    }
  }
  return methods;
}

// Returns "/package.Service/Method", as in a call.
inline std::string PathOf(const google::protobuf::MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

}  // namespace muster
