// Makes archives for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace muster {

// Writes the checksum into the header at `at`.
inline void SetTarChecksum(std::string& archive, size_t at = 0) {
  archive.replace(at + 148, 8, 8, ' ');
  int64_t sum = 0;
  for (size_t i = at; i < at + 512; ++i) sum += static_cast<unsigned char>(archive[i]);
  archive.replace(at + 148, 8, absl::StrFormat("%06o", sum) + std::string("\0 ", 2));
}

// Returns the header and the bytes of one member, in the ustar format.
inline std::string TarMemberBytes(absl::string_view name, absl::string_view bytes,
                                  char kind = '0') {
  std::string member(512, '\0');
  member.replace(0, name.size(), name.data(), name.size());
  member.replace(100, 7, "0000644");
  member.replace(124, 11, absl::StrFormat("%011o", bytes.size()));
  member[156] = kind;
  member.replace(257, 8, std::string("ustar\00000", 8));
  SetTarChecksum(member);
  absl::StrAppend(&member, bytes);
  member.resize((member.size() + 511) / 512 * 512);
  return member;
}

// Returns a pax record: its length, the key and the value.
inline std::string PaxRecord(absl::string_view key, absl::string_view value) {
  const std::string rest = absl::StrCat(" ", key, "=", value, "\n");
  size_t length = rest.size();
  while (absl::StrCat(length).size() + rest.size() != length) {
    length = absl::StrCat(length).size() + rest.size();
  }
  return absl::StrCat(length, rest);
}

inline std::string TarEnd() { return std::string(1024, '\0'); }

}  // namespace muster
