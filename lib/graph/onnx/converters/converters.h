// Converts each ONNX operator to operators of lib/graph/ops.md, one file per family. A converter
// adds nodes for one node of the file. It makes each output a tensor, an alias or a constant. Nodes
// that constant folding computes do not reach a converter. Private to lib/graph/onnx.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "lib/graph/onnx/importer.h"
#include "proto/third_party/onnx/onnx.pb.h"

namespace muster {

using OnnxConverter = absl::Status (*)(OnnxImporter& importer, const onnx::NodeProto& node);
using ConverterTable = absl::flat_hash_map<absl::string_view, OnnxConverter>;

void AddElementwiseConverters(ConverterTable& table);
void AddMatrixConverters(ConverterTable& table);
void AddImageConverters(ConverterTable& table);
void AddNormalisationConverters(ConverterTable& table);
void AddReductionConverters(ConverterTable& table);
void AddShapeConverters(ConverterTable& table);
void AddIndexConverters(ConverterTable& table);
void AddRecurrentConverters(ConverterTable& table);
void AddLossConverters(ConverterTable& table);

// Returns null if the operator is not supported.
OnnxConverter FindOnnxConverter(absl::string_view op_type);

}  // namespace muster
