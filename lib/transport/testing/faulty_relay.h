// A stretch of TCP between a test's two ends, which does one thing wrong.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <thread>

#include "lib/transport/core/doorbell.h"
#include "lib/transport/core/file_descriptor.h"

namespace muster {

// What goes wrong, and where: before the byte number `place` of all that has come in `direction`,
// over whichever connections, counted from 0.
struct RelayFault {
  enum class Kind : uint8_t {
    kNone,
    kFlip,   // of bit `bit` of that byte
    kCut,    // that byte and what follows do not come: the connection is closed on both sides
    kReset,  // likewise, with a reset
    kDelay,  // that byte, what comes with it and what follows come `delay` later
  };
  enum class Direction : uint8_t { kThere, kBack };  // from who connects; to him

  Kind kind = Kind::kNone;
  Direction direction = Direction::kThere;
  int64_t place = 0;
  int bit = 0;  // 0 to 7
  std::chrono::milliseconds delay{0};
};

// Listens on loopback and connects whoever comes to another port of loopback. The fault happens
// once. Thread-safe; a thread of its own moves the bytes.
class FaultyRelay {
 public:
  FaultyRelay(uint16_t to_port, const RelayFault& fault);
  ~FaultyRelay();  // hangs up
  FaultyRelay(const FaultyRelay&) = delete;
  FaultyRelay& operator=(const FaultyRelay&) = delete;

  uint16_t port() const { return port_; }
  // Whether the fault has happened.
  bool happened() const { return happened_; }
  // How many bytes have come in this direction.
  int64_t bytes(RelayFault::Direction direction) const {
    return bytes_[static_cast<size_t>(direction)];
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection;

  void Run();
  void Accept();
  bool Move(Connection& connection);
  bool MoveOneWay(Connection& connection, RelayFault::Direction direction);
  bool Receive(Connection& connection, RelayFault::Direction direction);
  bool Send(Connection& connection, RelayFault::Direction direction);

  const uint16_t to_port_;
  const RelayFault fault_;
  const Doorbell bell_;
  const FileDescriptor listener_;
  const uint16_t port_;
  std::atomic<bool> happened_ = false;
  std::array<std::atomic<int64_t>, 2> bytes_ = {};  // by direction
  std::list<Connection> connections_;               // the thread's
  std::thread thread_;                              // last: it uses the others
};

}  // namespace muster
