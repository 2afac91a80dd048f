#include "lib/transport/tcp/tcp_link.h"

#include "lib/transport/tcp/tcp_connection.h"

namespace muster {

TcpConnection* TcpLink::LeastBusy() const {
  TcpConnection* least = nullptr;
  for (TcpConnection* connection : connections) {
    if (!connection->open()) continue;
    if (incoming && connection->number > 0 && !connection->carried) continue;
    if (least == nullptr || connection->writer->bytes() < least->writer->bytes()) {
      least = connection;
    }
  }
  return least;
}

}  // namespace muster
