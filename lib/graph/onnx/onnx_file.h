// An ONNX file on disk: its graph, and its tensors wherever they lie.
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

  // NOT_FOUND; INVALID_ARGUMENT for what is no ONNX file, for an opset outside [kOpsetMin,
  // kOpsetMax] and for initialisers beside the file that are larger than the machine's memory. The
  // file's own functions are written out. Tensors are read when they are asked for; `may_read` is
  // asked before a file beside this one is opened for them, and null says yes.
  using MayRead = std::function<absl::Status(const std::string& path)>;
  static absl::StatusOr<OnnxFile> Open(const std::string& path, MayRead may_read = nullptr);

  const onnx::GraphProto& graph() const { return model_.graph(); }
  onnx::GraphProto* mutable_graph() { return model_.mutable_graph(); }
  int64_t opset() const { return opset_; }

  // Values of a tensor of the file, widened. INVALID_ARGUMENT for a type of another family, a size
  // that differs from its shape, external data that is missing, short, outside the file's folder or
  // not to be read.
  absl::StatusOr<std::vector<float>> Floats(const onnx::TensorProto& tensor) const;
  absl::StatusOr<std::vector<int64_t>> Integers(const onnx::TensorProto& tensor) const;

  // Writes the file to `path` with the values of some initialisers replaced, in their own types,
  // and in inference form: batch norms use their running values and nothing drops out. External
  // data is written beside it as "<file name>.data" when it was external, else inside.
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

// Elements of a tensor's shape; -1 when a dimension is negative or the product exceeds 2^40.
int64_t ElementsOf(const onnx::TensorProto& tensor);
bool IsFloating(int32_t data_type);

}  // namespace muster
