// Reads the text of a job file and its overrides as one tree. Each value knows its place.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/job/yaml/located_fault.h"

namespace muster {

struct YamlEntry;

// A YAML node with aliases expanded, and its place.
struct YamlValue {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string place;        // "job.yaml:12" or "--set training.steps"
  bool overridden = false;  // set by an override, or holds a value that was
  bool quoted = false;      // the scalar is text, whatever it looks like
  std::string text;
  std::vector<YamlValue> items;
  std::vector<YamlEntry> entries;
};

// Entries have the order of the file. A key may occur twice.
struct YamlEntry {
  std::string key;
  std::string place;
  YamlValue value;
};

// Reads `text` into `root`, which becomes a map, and applies `overrides` (dotted paths with YAML
// values). `file` is only for places. Returns the first fault, and then `root` is unusable. Faults
// are text that is not YAML, several documents, an invalid path, and values over the limits of a
// job file (job_file.h).
std::optional<LocatedFault> ReadYamlTree(
    const std::string& text, const std::string& file,
    absl::Span<const std::pair<std::string, std::string>> overrides, YamlValue& root);

// Returns the value at `key`, which is "name" or "name[3]", and sets `place` to its place. If the
// list has no such item, returns the list. If `map` does not set the key, returns nullptr and does
// not change `place`.
const YamlValue* Find(const YamlValue& map, const std::string& key, std::string& place);

// Returns the place of the value at the dotted path, or of the nearest enclosing value that is set.
std::string PlaceOf(const YamlValue& root, const std::string& path);

// For messages: the kind of a value ("a list"), and text in quotes, cut if it is long.
std::string KindName(const YamlValue& value);
std::string Quoted(absl::string_view text);

// How YAML reads a scalar without quotes. Integers are numbers too. Text is neither a number nor
// true, false or null.
bool LooksLikeInteger(absl::string_view text);
bool LooksLikeNumber(const std::string& text);
bool LooksLikeText(const std::string& text);

}  // namespace muster
