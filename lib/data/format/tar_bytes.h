// Makes archives for tests. See also tar_writer.h.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/data/format/tar_writer.h"

namespace muster {

// Returns the header and the bytes of one member, with its padding.
inline std::string TarMemberBytes(absl::string_view name, absl::string_view bytes,
                                  char kind = '0') {
  return absl::StrCat(TarHeader(name, bytes.size(), kind), bytes, TarPadding(bytes.size()));
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

}  // namespace muster
