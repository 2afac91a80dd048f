// Calls any method with any bytes, for tests of the coordinator's error handling.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "lib/status/grpc_status.h"

namespace muster {

// Sends one message to "/package.Service/Method". Returns the status of the call, or
// DEADLINE_EXCEEDED after 30 s. `abandon`: cancels the call as soon as the message is sent. A
// stream is cancelled after three answers, because a watch of a waiting job never ends.
inline absl::Status CallRaw(grpc::GenericStub& stub, const std::string& method,
                            const std::string& request, bool abandon = false) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, method, &queue);
  auto next = [&] {
    void* tag;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  call->StartCall(nullptr);
  next();
  const grpc::Slice bytes(request);
  call->WriteLast(grpc::ByteBuffer(&bytes, 1), grpc::WriteOptions(), nullptr);
  next();
  if (abandon) context.TryCancel();
  grpc::ByteBuffer answer;
  int answers = 0;
  do {
    if (++answers > 3) context.TryCancel();
    call->Read(&answer, nullptr);
  } while (next());
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return FromGrpc(status);
}

}  // namespace muster
