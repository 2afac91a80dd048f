#include "lib/status/utf8.h"

#include "absl/strings/str_format.h"

namespace muster {

size_t Utf8CharacterBytes(absl::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (size == 0 || text.size() < size) return 0;
  // Accepts only the shortest form, no halves of surrogate pairs, and nothing beyond 0x10ffff.
  const unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < size; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return size;
}

std::string Printable(absl::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    const size_t size = Utf8CharacterBytes(text);
    const int first = static_cast<unsigned char>(text[0]);
    const int second = size == 2 ? static_cast<unsigned char>(text[1]) : 0;
    if (size == 0) {
      printable += '?';
    } else if (first == '\n') {
      printable += "\\n";
    } else if (first < 0x20 || first == 0x7f) {
      absl::StrAppendFormat(&printable, "\\x%02x", first);
    } else if (first == 0xc2 && second < 0xa0) {
      absl::StrAppendFormat(&printable, "\\u%04x", second);
    } else {
      printable.append(text.data(), size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return printable;
}

std::string ValidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t size = Utf8CharacterBytes(text);
    if (size == 0) {
      valid += '?';
    } else {
      valid.append(text.data(), size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return valid;
}

}  // namespace muster
