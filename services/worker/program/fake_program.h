// A program for tests, on the real socket. It speaks docs/loop_protocol.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/transport/core/file_descriptor.h"
#include "lib/transport/core/sealed_memory.h"
#include "nlohmann/json.hpp"
#include "services/worker/program/program_protocol.h"

namespace muster {

// Returns a new path for a socket. The paths of test folders are too long for sockets.
std::string NewSocketPath();

// Fails the test binary (CHECK) if the worker does not answer in 30 s.
class FakeProgram {
 public:
  explicit FakeProgram(const std::string& path);  // connects

  // Sends HELLO. Blocks until WELCOME, and maps the memory.
  void Join(const std::string& job = "", int process = 0);
  // Joins and sends DATA.
  void Attach(int64_t samples = 512);
  // Sends NEXT. Blocks until BEGIN or END, and returns its body.
  nlohmann::json Next(const nlohmann::json& finished = nullptr);
  // Returns `finished` for the last BEGIN.
  nlohmann::json Finished(double loss) const;

  struct Gradient {
    int parameter = 0;
    double learning_rate = 0.3;
    uint32_t flags = 0;
  };
  // Announces gradients of the last BEGIN, or of another attempt. The weight is that of its
  // samples, or another one.
  void Announce(const std::vector<Gradient>& gradients);
  void Announce(int64_t attempt, float weight, const std::vector<Gradient>& gradients);

  void Send(ProgramMessageKind kind, const nlohmann::json& body);
  void SendBytes(absl::string_view bytes);
  struct Message {
    ProgramMessageKind kind{};  // 0: the worker has ended the connection
    nlohmann::json body;
  };
  Message Receive();
  // Returns the body of the next message, which must be of this kind.
  nlohmann::json Await(ProgramMessageKind kind);
  // Ends the connection as a killed process would.
  void Die() { socket_ = FileDescriptor(); }

  const nlohmann::json& welcome() const { return welcome_; }
  const nlohmann::json& begin() const { return begin_; }
  float* memory(int file) { return reinterpret_cast<float*>(memory_[file].memory().data()); }
  absl::Span<float> gradient(int parameter) { return Tensor(0, parameter); }
  absl::Span<float> values(int parameter) {  // of the step of the last BEGIN
    return values(parameter, begin_["step"].get<int64_t>());
  }
  absl::Span<float> values(int parameter, int64_t version) {
    return Tensor(1 + static_cast<int>(version & 1), parameter);
  }

  // Computes the gradients of the last BEGIN for the line 3 x - 0.5. Returns the loss.
  double ComputeLine();
  // Runs steps until END, and returns its body.
  nlohmann::json TrainLine();

 private:
  absl::Span<float> Tensor(int memory, int parameter);
  std::string ReadExactly(size_t bytes);

  FileDescriptor socket_;
  std::vector<FileDescriptor> files_;
  std::vector<SealedMemory> memory_;
  nlohmann::json welcome_, begin_;
};

}  // namespace muster
