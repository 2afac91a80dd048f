// The text of a job file and its overrides as one tree, each value with the place it comes from.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/job/located_fault.h"

namespace muster {

struct YamlEntry;

// A YAML node with aliases expanded and the place it came from.
struct YamlValue {
  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string place;        // "job.yaml:12" or "--set training.steps"
  bool overridden = false;  // set by an override, or holds something that was
  bool quoted = false;      // a scalar that is text whatever it looks like
  std::string text;
  std::vector<YamlValue> items;
  std::vector<YamlEntry> entries;
};

// Entries stand in the order of the file; a key may stand there twice.
struct YamlEntry {
  std::string key;
  std::string place;
  YamlValue value;
};

// Reads `text` into `root`, which is a map then, and sets what `overrides` say, dotted paths with
// YAML values. Returns the first thing that prevents it, in which case `root` is of no use: no
// YAML, several documents, a path that is none, or more than the limits of a job file
// (job_file.h). `file` is only for places.
std::optional<LocatedFault> ReadYamlTree(
    const std::string& text, const std::string& file,
    absl::Span<const std::pair<std::string, std::string>> overrides, YamlValue& root);

// The value at `key`, "name" or "name[3]", and the place it was set; a list that has no such item
// stands for it. nullptr, and `place` untouched, when `map` does not set it.
const YamlValue* Find(const YamlValue& map, const std::string& key, std::string& place);

// The place of the value at the dotted path, or of the nearest that encloses it and is set.
std::string PlaceOf(const YamlValue& root, const std::string& path);

// For messages: what a value is ("a list"), and a text in quotes, cut where it is long.
std::string KindName(const YamlValue& value);
std::string Quoted(absl::string_view text);

// What YAML takes a scalar without quotes for. Integers are numbers too; what is text is neither a
// number nor true, false or null.
bool LooksLikeInteger(absl::string_view text);
bool LooksLikeNumber(const std::string& text);
bool LooksLikeText(const std::string& text);

}  // namespace muster
