#include "lib/transport/tcp/tcp_address.h"

#include <glog/logging.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/status/status.h"
#include "lib/transport/core/address_envelope.h"

namespace muster {
namespace {

constexpr absl::string_view kAddressMark = "MUT1";

void Append(std::string& bytes, uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t Remove(absl::string_view& bytes, size_t width) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) {
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  bytes.remove_prefix(width);
  return value;
}

}  // namespace

std::string EncodeTcpAddress(const TcpAddress& address) {
  std::string bytes;
  Append(bytes, address.port, 8);
  Append(bytes, address.transport, 4);
  for (const Endpoint& endpoint : address.endpoints) {
    CHECK_LE(endpoint.host.size(), Endpoint::kHostBytesMax);
    Append(bytes, endpoint.port, 2);
    Append(bytes, endpoint.host.size(), 1);
    bytes += endpoint.host;
  }
  return SealAddress(kAddressMark, bytes);
}

absl::StatusOr<TcpAddress> DecodeTcpAddress(absl::string_view sealed) {
  ASSIGN_OR_RETURN(absl::string_view bytes, OpenAddress(kAddressMark, sealed, "TCP address"));
  const auto wrong = [&sealed] {
    return absl::InvalidArgumentError(
        absl::StrCat("these ", sealed.size(), " bytes are no TCP address"));
  };
  if (bytes.size() < 12) return wrong();
  TcpAddress address;
  address.port = Remove(bytes, 8);
  address.transport = static_cast<uint32_t>(Remove(bytes, 4));
  while (!bytes.empty()) {
    if (bytes.size() < 3 || address.endpoints.size() == TcpAddress::kEndpointsMax) return wrong();
    Endpoint& endpoint = address.endpoints.emplace_back();
    endpoint.port = static_cast<uint16_t>(Remove(bytes, 2));
    const size_t size = Remove(bytes, 1);
    if (bytes.size() < size || size == 0) return wrong();
    endpoint.host = std::string(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  if (address.endpoints.empty()) return wrong();
  return address;
}

}  // namespace muster
