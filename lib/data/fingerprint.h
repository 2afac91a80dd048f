// Recognizes data, so that no worker trains on other data than the others, or than before.
#pragma once

#include <string>
#include <vector>

namespace muster {

// Returns a hash of the facts in their order, 32 hexadecimal digits, for Dataset::fingerprint().
// Facts are names without folders, sizes, shapes and labels, and a word for the source.
std::string FingerprintOf(const std::vector<std::string>& facts);

}  // namespace muster
