// A stretch of TCP between the two ends of a test, with one fault.
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

// A fault and its place: before byte number `place` of all bytes that arrive in `direction`, over
// any connection, counted from 0.
struct RelayFault {
  enum class Kind : uint8_t {
    kNone,
    kFlip,   // bit `bit` of that byte flips
    kCut,    // that byte and all later ones are dropped: the connection is closed on both sides
    kReset,  // like kCut, with a reset
    kDelay,  // that byte, those read with it and later ones are held back until `delay` has passed
  };
  enum class Direction : uint8_t { kThere, kBack };  // from the connecting side; to it

  Kind kind = Kind::kNone;
  Direction direction = Direction::kThere;
  int64_t place = 0;
  int bit = 0;  // 0 to 7
  std::chrono::milliseconds delay{0};
};

// Listens on loopback and relays each connection to another loopback port. The fault happens once.
// Thread-safe; its own thread moves the bytes.
class FaultyRelay {
 public:
  FaultyRelay(uint16_t to_port, const RelayFault& fault);
  ~FaultyRelay();  // closes all connections
  FaultyRelay(const FaultyRelay&) = delete;
  FaultyRelay& operator=(const FaultyRelay&) = delete;

  uint16_t port() const { return port_; }
  // Whether the fault has happened.
  bool happened() const { return happened_; }
  // The number of bytes that arrived in this direction.
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
  std::list<Connection> connections_;               // used only by the thread
  std::thread thread_;                              // last, because it uses the others
};

}  // namespace muster
