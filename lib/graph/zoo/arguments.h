// Reads the arguments of a zoo model and collects every fault.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster::zoo {

inline constexpr int64_t kWidthMax = 1 << 24;  // of a layer: products of two stay far below 2^63
inline constexpr int64_t kSideMax = 1 << 16;   // of an image: so do products of three
inline constexpr int64_t kLayersMax = 1024;

// A reader returns a value in range even after a fault, so that the builder can go on looking; what
// Verify() returns decides. Thread-compatible.
class Arguments {
 public:
  explicit Arguments(const v1::ZooModel& model) : model_(model) {}

  bool Has(const std::string& name) const { return model_.args().fields().contains(name); }

  // 1 to `max`.
  int64_t Integer(const std::string& name, int64_t value_if_absent, int64_t max = kWidthMax);

  // A comma list, or one integer; each 1 to kWidthMax. "" is the empty list.
  std::vector<int64_t> Integers(const std::string& name, std::vector<int64_t> value_if_absent);

  // 0 or more, below 1.
  double Rate(const std::string& name, double value_if_absent);

  bool Boolean(const std::string& name, bool value_if_absent);

  // The index of one of `words`; 0 if absent.
  int Choice(const std::string& name, const std::vector<std::string>& words);

  void Refuse(absl::string_view name, absl::string_view fault);

  // Refuses `name`, read as `value`, unless it divides `whole`, which is called `whole_name`.
  void RequireDivides(absl::string_view name, int64_t value, absl::string_view whole_name,
                      int64_t whole);

  // Faults so far, and arguments that nobody has asked for.
  absl::Status Verify();

 private:
  const google::protobuf::Value* Read(const std::string& name);

  // NaN stands for what is no number.
  int64_t Checked(const std::string& name, double number, int64_t max);

  const v1::ZooModel& model_;
  absl::flat_hash_set<std::string> known_;
  std::vector<std::string> known_in_order_;
  std::vector<std::string> faults_;
};

}  // namespace muster::zoo
