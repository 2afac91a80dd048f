// An ONNX file on disk: its graph, and its tensors, inside the file or beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

// Thread-compatible.
class OnnxFile {
 public:
  static constexpr int64_t kOpsetMin = 13;
  static constexpr int64_t kOpsetMax = 24;

  using MayRead = std::function<absl::Status(const std::string& path)>;

  // Opens a file and inlines its own functions. Tensors in files beside it are read at each
  // request. `may_read` is called before such a file is opened; null allows all.
  //
  // Returns NOT_FOUND if the file cannot be opened. Returns INVALID_ARGUMENT in these cases:
  // - it is not an ONNX file, or has names that are not UTF-8;
  // - its opset is outside [kOpsetMin, kOpsetMax];
  // - its functions cannot be inlined;
  // - its initialisers in other files are larger than the machine's memory.
  static absl::StatusOr<OnnxFile> Open(const std::string& path, MayRead may_read = nullptr);

  const onnx::GraphProto& graph() const { return model_.graph(); }
  onnx::GraphProto* mutable_graph() { return model_.mutable_graph(); }
  int64_t opset() const { return opset_; }

  // Return the values of a tensor of the file, converted. Return INVALID_ARGUMENT for a type of
  // another family and for a size that differs from its shape. They also return it for external
  // data that is missing, short, outside the file's folder, or not allowed.
  absl::StatusOr<std::vector<float>> Floats(const onnx::TensorProto& tensor) const;
  absl::StatusOr<std::vector<int64_t>> Integers(const onnx::TensorProto& tensor) const;

  // Writes the file to `path` with the values of some initialisers replaced, in their own types.
  // The file is in inference form: batch norms use their running values, and dropout is off.
  // External data is written beside it as "<file name>.data", other data inside it.
  // Returns UNAVAILABLE if a file cannot be written, and the errors of Floats().
  absl::Status Save(const std::string& path,
                    const absl::flat_hash_map<std::string, std::vector<float>>& values) const;

 private:
  OnnxFile() = default;

  absl::StatusOr<std::string> Bytes(const onnx::TensorProto& tensor) const;

  std::string path_;
  MayRead may_read_;
  onnx::ModelProto model_;
  int64_t opset_ = 0;
};

// Returns the number of elements of a tensor's shape, or -1 if a dimension is negative or the
// product exceeds 2^40.
int64_t ElementsOf(const onnx::TensorProto& tensor);
bool IsFloating(int32_t data_type);

}  // namespace muster
