// Fills the rows of a model from the fields of a line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lib/data/format/csv.h"
#include "lib/data/input_use.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

inline constexpr size_t kCsvColumnsMax = 1 << 16;

// The columns that all files have.
struct CsvLayout {
  CsvFormat format;
  std::vector<std::string> names;  // empty: the columns have only numbers
  size_t columns = 0;

  // Returns "column 3 'height'".
  std::string NameOf(int column) const;
};

// A graph input, and the columns that fill it.
struct CsvColumns {
  struct Number {
    double missing, scale, offset;
    bool is_log;
  };
  struct Hash {
    int64_t buckets;
    bool is_per_column;
  };
  struct Vocabulary {
    absl::flat_hash_map<std::string, int32_t> ids;
    std::optional<int32_t> unknown;
    std::string fingerprint;  // of the words in their order
  };

  std::vector<int> columns;  // from 0
  v1::DType dtype;
  InputUse use;
  std::variant<Number, Hash, Vocabulary> rule;

  int64_t row_bytes() const { return std::ssize(columns) * 4; }
};

// Returns the columns of `input`, and subtracts the memory of a vocabulary from `bytes_left`.
// Blocks while it reads one. Errors name the field at fault.
absl::StatusOr<CsvColumns> OpenCsvColumns(const v1::CsvData& csv, const v1::GraphInput& input,
                                          const InputUse& use, const CsvLayout& layout,
                                          int64_t& bytes_left);

// A field of a line that does not fit.
struct CsvFault {
  int column;
  std::string message;
};

// Fills one row from the fields of a line. Requires: the line has all columns of the layout.
std::optional<CsvFault> FillColumns(const CsvColumns& input,
                                    const std::vector<absl::string_view>& fields, std::byte* to);

}  // namespace muster
