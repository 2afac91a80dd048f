// AES-128-GCM with wide instructions of newer processors, for OpenSSL 3.0, which does not use them.
#pragma once

#include <openssl/types.h>

namespace muster {

// OpenSSL 3.0 computes AES-GCM with 128-bit instructions. OpenSSL 3.1 and later use 512-bit ones
// (VAES) if the processor has them, and are four times as fast. Intel's libIPSec_MB 1.3 (Debian 12:
// libipsec-mb1) also uses them. Muster loads it if it is installed, OpenSSL is 3.0 and the
// processor has the instructions.
//
// Returns an OpenSSL library context. With kFastGcmProperties it provides this AES-128-GCM, and
// everything else from OpenSSL's own provider. Returns null, which means OpenSSL's default context,
// if OpenSSL is newer, the processor lacks the instructions, or the library is missing. The context
// is made once and lives as long as the process. With OpenSSL 3.0 the first call logs the choice.
// Thread-safe.
OSSL_LIB_CTX* FastGcmContext();

inline constexpr char kFastGcmProperties[] = "?provider=muster_gcm";

}  // namespace muster
