// AES-128-GCM with the wide instructions of newer processors, for OpenSSL 3.0, which has none.
#pragma once

#include <openssl/types.h>

namespace muster {

// OpenSSL 3.0 does AES-GCM with instructions of 128 bits, OpenSSL 3.1 and later with those of 512
// (VAES) where the processor has them, four times as fast. So does Intel's libIPSec_MB 1.3 (Debian
// 12: libipsec-mb1), and it is loaded where all of this is so; nobody needs to install it.
//
// A library context of OpenSSL, of which kFastGcmProperties fetch that AES-128-GCM and everything
// else from OpenSSL's own; null, which stands for OpenSSL's default context, where OpenSSL is newer
// or processor or library are missing. Made once, for the life of the process; the first call says
// in the log what it is. Thread-safe.
OSSL_LIB_CTX* FastGcmContext();

inline constexpr char kFastGcmProperties[] = "?provider=muster_gcm";

}  // namespace muster
