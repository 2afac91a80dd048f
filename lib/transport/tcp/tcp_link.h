// A link over TCP: its connections, the peer, and the messages that wait to be sent.
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

// Owned and changed by a TcpTransport, which also owns the connections. Thread-compatible.
struct TcpLink {
  PeerId id;
  std::string name;    // for errors: the peer's identity, if known
  LinkHello hello;     // the peer's; or ours, if this side connected
  SessionToken token;  // of the session, as it was proved or will be
  std::vector<TcpConnection*> connections;
  absl::Status lost;  // OK until the link is lost
  std::vector<WireHeader> payloads_lost;
  bool incoming = false;     // the other end connected
  bool joins = false;        // the receiver does not know it yet
  ConnectAttempts attempts;  // of this side, until it is connected
  std::chrono::steady_clock::time_point open_more_from =
      std::chrono::steady_clock::time_point::max();
  uint32_t connections_made = 0;
  FrameWriter waiting{/*checksums=*/false};  // until a connection is open

  // Returns the open connection with the fewest unsent bytes; null if none is open. The accepting
  // side sends on an additional connection only after it received something there: until then it
  // cannot know whether the other end has accepted it as part of the link.
  TcpConnection* LeastBusy() const;
};

}  // namespace muster
