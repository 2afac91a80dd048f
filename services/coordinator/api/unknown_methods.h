// Answers calls of methods that the coordinator does not have.
#pragma once

#include "grpcpp/generic/async_generic_service.h"

namespace muster {

// Returns UNIMPLEMENTED with an explanation. The caller is probably a program of another version,
// which can only show this message. The message has no version, because the caller is not
// authenticated.
class UnknownMethods final : public grpc::CallbackGenericService {
 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
};

}  // namespace muster
