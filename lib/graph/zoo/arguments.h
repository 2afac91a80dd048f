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

// The widest layer: products of two such numbers stay far below 2^63.
inline constexpr int64_t kWidthMax = 1 << 24;
// The largest side of an image: products of three such numbers stay far below 2^63.
inline constexpr int64_t kSideMax = 1 << 16;
inline constexpr int64_t kLayersMax = 1024;

// Each reader returns a value in range even after a fault, so that the builder can continue.
// Verify() returns all faults. Thread-compatible.
class Arguments {
 public:
  explicit Arguments(const v1::ZooModel& model) : model_(model) {}

  bool Has(const std::string& name) const { return model_.args().fields().contains(name); }

  // Reads an integer from 1 to `max`.
  int64_t Integer(const std::string& name, int64_t value_if_absent, int64_t max = kWidthMax);

  // Reads a comma list or one integer; each value is 1 to kWidthMax. "" is the empty list.
  std::vector<int64_t> Integers(const std::string& name, std::vector<int64_t> value_if_absent);

  // Reads a number in [0, 1).
  double Rate(const std::string& name, double value_if_absent);

  bool Boolean(const std::string& name, bool value_if_absent);

  // Returns the index of one of `words`; 0 if absent.
  int Choice(const std::string& name, const std::vector<std::string>& words);

  void Refuse(absl::string_view name, absl::string_view fault);

  // Refuses `name`, which has the value `value`, unless it divides `whole`, which is called
  // `whole_name`.
  void RequireDivides(absl::string_view name, int64_t value, absl::string_view whole_name,
                      int64_t whole);

  // Returns the faults so far, including arguments that no reader has asked for.
  absl::Status Verify();

 private:
  const google::protobuf::Value* Read(const std::string& name);

  // A NaN `number` means that the argument is not a number.
  int64_t Checked(const std::string& name, double number, int64_t max);

  const v1::ZooModel& model_;
  absl::flat_hash_set<std::string> known_;
  std::vector<std::string> known_in_order_;
  std::vector<std::string> faults_;
};

}  // namespace muster::zoo
