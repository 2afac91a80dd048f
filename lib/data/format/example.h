// Reads the features of tf.train.Example messages from their wire bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster {

// All errors here are INVALID_ARGUMENT for bytes that are not what they should be. They name no
// place; a source adds it by DataDamaged().

// A feature of an Example: a list of one kind.
struct Feature {
  enum class Kind : uint8_t {
    kMissing,  // the Example does not name it
    kNoList,   // it has none of the three lists
    kBytes,
    kFloats,
    kIntegers,
  };
  Kind kind = Kind::kMissing;
  absl::Span<const std::byte> list;  // a BytesList, FloatList or Int64List, not checked yet
};

absl::string_view ToText(Feature::Kind kind);  // "floats"

// Finds the features that a reader wants. Immutable; threads may share it.
class FeatureFinder {
 public:
  // Requires: the names differ.
  explicit FeatureFinder(std::vector<std::string> names);

  const std::vector<std::string>& names() const { return names_; }

  // Sets `found` to the features, in the order of names. They refer to the bytes of `example`. The
  // last one counts if the Example has a name twice. Reads only the outer structure, and allocates
  // nothing. Fails for a SequenceExample if it has feature lists. Requires: sizes are equal.
  absl::Status Find(absl::Span<const std::byte> example, absl::Span<Feature> found) const;

 private:
  struct Slot {
    uint64_t hash = 0;
    int name = -1;  // < 0: free
  };

  std::vector<std::string> names_;
  std::vector<Slot> slots_;  // a hash table with linear probing; its size is a power of two
};

// Returns all features by name. They refer to the bytes of `example`.
absl::StatusOr<std::map<std::string, Feature>> AllFeatures(absl::Span<const std::byte> example);

// Returns the names and kinds of the first features, sorted: "image (bytes), label (integers)", and
// how many others there are. For messages.
absl::StatusOr<std::string> DescribeFeatures(absl::Span<const std::byte> example);

// Each copies the first values of a list that is of the kind, up to the size of `to`. Returns how
// many the list has. Requires: the feature's kind.
absl::StatusOr<int64_t> ReadFloats(const Feature& feature, absl::Span<float> to);
absl::StatusOr<int64_t> ReadIntegers(const Feature& feature, absl::Span<int64_t> to);

// Reads integers as above, but quicker. `fit` tells whether each copied value is in [0, 2^31);
// otherwise the values are undefined.
struct SmallIntegers {
  int64_t count = 0;
  bool fit = false;
};
absl::StatusOr<SmallIntegers> ReadSmallIntegers(const Feature& feature, absl::Span<int32_t> to);

// Returns the bytes of a list of one value. They refer to the bytes of the Example. Fails if the
// list has another number of values. Requires: the feature's kind is kBytes.
absl::StatusOr<absl::Span<const std::byte>> ReadBytes(const Feature& feature);

}  // namespace muster
