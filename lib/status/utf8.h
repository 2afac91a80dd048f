// UTF-8, the only encoding that the API's strings can carry.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Returns the length of the first character of `text` in bytes, or 0 if it does not begin with a
// valid one. `text` must not be empty.
size_t Utf8CharacterBytes(absl::string_view text);

// Returns `text` with a question mark for every byte that is not part of a character. Cut text may
// end in such bytes; a message that contains one would lose all of its payloads.
std::string ValidUtf8(absl::string_view text);

// Does what ValidUtf8() does, and writes control characters as text (\n, \x1b, \u009b). So text
// from others can neither begin a line of a log nor control a terminal.
std::string Printable(absl::string_view text);

}  // namespace muster
