// UTF-8, which is all that strings of the API can carry.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// The bytes of the character that `text`, which is not empty, begins with; 0 if that is none.
size_t Utf8CharacterBytes(absl::string_view text);

// `text` with a question mark for every byte that belongs to no character. A text that was cut may
// end in such bytes, and a message that has one loses everything that comes with it.
std::string ValidUtf8(absl::string_view text);

// The same, and control characters as text (\n, \x1b, \u009b): what others wrote begins no line of
// a log and tells a terminal nothing.
std::string Printable(absl::string_view text);

}  // namespace muster
