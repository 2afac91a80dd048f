// One link over TCP: its connections, who is at its other end, and what waits to be sent.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "lib/transport/core/transport.h"
#include "lib/transport/core/wire.h"
#include "lib/transport/session/session.h"
#include "lib/transport/session/session_handshake.h"
#include "lib/transport/tcp/connect_attempts.h"
#include "lib/transport/tcp/frame_writer.h"

namespace muster {

struct TcpConnection;

// Owned and changed by a TcpTransport, which owns the connections too. Thread-compatible.
struct TcpLink {
  PeerId id;
  std::string name;    // for errors: who it is, where known
  LinkHello hello;     // its own or, where this side has connected, ours
  SessionToken token;  // of the session, as it was proved or is to be
  std::vector<TcpConnection*> connections;
  absl::Status lost;  // OK while it is not
  std::vector<WireHeader> payloads_lost;
  bool incoming = false;     // the other end has connected
  bool joins = false;        // the receiver has not heard of it yet
  ConnectAttempts attempts;  // of this side, until it is connected
  std::chrono::steady_clock::time_point open_more_from =
      std::chrono::steady_clock::time_point::max();
  uint32_t connections_made = 0;
  FrameWriter waiting{/*checksums=*/false};  // until the connection is open

  // The open connection with the least under way; null: none is open. Who was connected to speaks
  // on an additional one when he has heard something there: until then he does not know whether the
  // other end has it.
  TcpConnection* LeastBusy() const;
};

}  // namespace muster
