// The answer to calls of methods that the coordinator does not have.
#pragma once

#include "grpcpp/generic/async_generic_service.h"

namespace muster {

// UNIMPLEMENTED with a message: who calls is a program of another version, most likely, which can
// tell its people nothing but what it hears. It hears no version: nobody has asked who it is.
class UnknownMethods final : public grpc::CallbackGenericService {
 private:
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;
};

}  // namespace muster
