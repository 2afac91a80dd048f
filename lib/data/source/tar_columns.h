// Fills the rows of a model from the members of a sample in a tar file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "lib/data/image_rows.h"
#include "lib/data/input_use.h"
#include "lib/data/order/sample_ref.h"
#include "proto/muster/v1/graph.pb.h"
#include "proto/muster/v1/job.pb.h"

namespace muster {

// A graph input, and the members that fill it.
struct TarColumn {
  std::string field;  // "data.tar.inputs.target"
  std::vector<std::string> extensions;
  v1::TarInput::KindCase kind;
  std::string json_field;
  v1::DType dtype;
  std::vector<int64_t> shape;  // of one row
  InputUse use;
  int label = -1;  // its number among the labels of the index
  std::unique_ptr<const ImageRows> images;

  int64_t elements() const {
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    return elements;
  }
  int64_t row_bytes() const { return elements() * (images != nullptr ? 1 : 4); }

  // Returns why the column cannot hold the number, or "".
  std::string NumberFault(int64_t number) const;

  // Fills a row with a number of the index. Returns INVALID_ARGUMENT if it does not fit.
  absl::Status PutLabel(int64_t label, std::byte* row) const;

  // Fills a row from the bytes of a member. `ref` is null for an evaluation. Returns
  // INVALID_ARGUMENT if the bytes are damaged or do not fit, without their place.
  absl::Status Put(absl::Span<const std::byte> bytes, const SampleRef* ref, std::byte* row) const;
};

// Returns a column for each input of the graph. Errors name the field at fault.
absl::StatusOr<std::vector<TarColumn>> TarColumnsOf(const v1::DataSpec& spec,
                                                    const v1::Graph& graph,
                                                    const MakeImageRows& make_image_rows);

// Returns the number that a member has as text, or nullopt if it is none.
std::optional<int64_t> TarIntegerOf(absl::string_view text);

}  // namespace muster
