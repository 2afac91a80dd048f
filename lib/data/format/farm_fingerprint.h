// Hashes text as TensorFlow's tf.strings.to_hash_bucket_fast.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace muster {

// Returns FarmHash's Fingerprint64 of the bytes: the same on every machine, in every version.
uint64_t FarmFingerprint(absl::string_view text);

}  // namespace muster
