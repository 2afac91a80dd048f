// Who makes a call, as the front door knows it and as services see it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/security/identity.h"

namespace muster {

struct Caller {
  std::optional<Identity> certificate;  // of the connection; nullopt: it has shown none
  std::string address;                  // "10.1.2.3:40812"; "" in a process of its own
  std::string token;                    // "t-4f2a91c0 (ann)", of the call; "": none

  // What the door writes on calls: `identity` is ToString()'s, or "" without a certificate.
  static std::string Stamp(absl::string_view identity, absl::string_view address);
  // INVALID_ARGUMENT: nothing that Stamp() made.
  static absl::StatusOr<Caller> Parse(absl::string_view stamp);

  // For logs: "worker/w-1 from 10.1.2.3:40812", "token t-4f2a91c0 (ann) from ...", "somebody from
  // ...".
  std::string ToString() const;
};

}  // namespace muster
